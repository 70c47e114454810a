"""Turn jsonargparse's messages into one line: the key, what was given, what is allowed."""

import inspect
import re

from jsonargparse import ArgumentParser

from src.data.pytorch_dataset import FieldDataset


def explain(message: str, parser: ArgumentParser) -> str:
    """One line from jsonargparse's message: the key, what was given, what is allowed."""
    # jsonargparse says, for example, over three lines:
    #   Parser key "data.dataset": Type collections.abc.Callable[[...], ...] expects a function or a
    #   callable class: Option 'windw' is not accepted. Got value: Namespace(class_path='...', ...)
    message = " ".join(message.split())
    chosen = re.search(r"class_path='([^']*)'", message)
    # What the user did not write is of no use to him: Python types, and all that was parsed before.
    message = re.sub(r"Type \S*Callable\[.*? expects a function or a callable class: ", "", message)
    message = re.sub(r"\.? Got value: Namespace\(.*", "", message).replace("Parser key ", "")
    classes = {usable.__name__: usable for usable in usable_classes(FieldDataset)}
    # ... Expected a dot import path string: Ocean | No module named 'ocean' | has no attribute
    if re.search("import path|No module|has no attribute", message):
        names = ", ".join(sorted(classes))
        return f"{message}; allowed: {names}, or the import path of your own class"
    # unrecognized arguments: --model.x=1 | Group 'model' does not accept option 'x' | Option 'x'
    unknown = re.search(r"(?:arguments: --|Group '|[Oo]ption ')(\w*)", message)
    if not unknown:
        return message
    name = chosen[1].rpartition(".")[2] if chosen else ""
    if name in classes and "data.dataset" in message:
        keys = list(inspect.signature(classes[name]).parameters)[1:]  # the first is the split
        return f"{message}; allowed for {name}: {', '.join(keys)}"
    section = unknown[1] if unknown[1] in ("model", "data", "optimizer", "trainer") else ""
    keys = [str(key) for key, _ in parser.get_defaults().items() if key.startswith(section)]
    keys = [key for key in keys if not key.startswith("data.dataset.")]
    return f"{message}; allowed: {', '.join(keys)}"


def usable_classes(base: type) -> list[type]:
    """``base`` and its subclasses, without those that are only there to be built upon.

    A dataset that can be chosen takes the split first, which is what the program gives it.
    """
    children: list[type] = base.__subclasses__()
    found = [usable for child in children for usable in usable_classes(child)]
    first = next(iter(inspect.signature(base).parameters), "")
    return [base, *found] if first == "split" else found
