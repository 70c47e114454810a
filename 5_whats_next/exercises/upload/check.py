"""Does latest.json name nothing but whole objects, whenever the upload is killed?"""

import hashlib
import json
from types import ModuleType
from typing import Any

KEYS = ("object", "step", "sha256")  # of each copy in latest.json
MOST = 50  # requests of one upload


class Killed(BaseException):
    """The process is gone: nothing may catch it."""


class Storage:
    """Objects, and a process that may make a number of requests before it is killed."""

    def __init__(self, objects: dict[str, bytes], requests: int = MOST, damage: bool = False):
        self.objects, self.left, self.damage = dict(objects), requests, damage
        self.last = "none"  # request

    def request(self, what: str) -> None:
        if not self.left:
            raise Killed
        self.left -= 1
        self.last = what

    def put(self, name: str, content: bytes | str) -> None:
        self.request(f"put {name}")
        content = content.encode() if isinstance(content, str) else bytes(content)
        if self.damage and name != "latest.json":
            content, self.damage = content[:-1] + b"?", False  # the next one arrives as it was sent
        self.objects[name] = content

    def get(self, name: str) -> bytes | None:
        self.request(f"get {name}")
        return self.objects.get(name)

    def names(self) -> list[str]:
        self.request("names")
        return sorted(self.objects)

    def delete(self, name: str) -> None:
        self.request(f"delete {name}")
        self.objects.pop(name, None)


def content_of(step: int, attempt: int = 1) -> bytes:
    return f"weights and optimiser after step {step}, attempt {attempt}.".encode()


def named(objects: dict[str, bytes], when: str) -> list[dict[str, Any]]:
    """What latest.json names, the newest first. Raises AssertionError if not all of it is whole."""
    text = objects.get("latest.json", b'{"kept": []}')
    try:
        kept = [{key: copy[key] for key in KEYS} for copy in json.loads(text)["kept"]]
    except (ValueError, KeyError, TypeError):
        form = '{"kept": [{"object": ..., "step": ..., "sha256": ...}, ...]}'
        raise AssertionError(f"{when}: latest.json is not of the form {form}") from None
    for copy in kept:
        what = f"{when}: latest.json names {copy['object']} of step {copy['step']}, which"
        content = objects.get(copy["object"])
        assert content is not None, f"{what} is not there"
        found = hashlib.sha256(content).hexdigest()
        assert found == copy["sha256"], f"{what} has another SHA-256 now: nobody can go on from it"
        sent = content in [content_of(copy["step"], attempt) for attempt in (1, 2)]
        assert sent, f"{what} is not the content that was uploaded"
    return sorted(kept, key=lambda copy: copy["step"], reverse=True)


def ends(answer: ModuleType, storage: Storage, content: bytes, step: int) -> bool:
    """Whether an upload ends before its process does."""
    try:
        answer.upload(storage, content, step)
    except Killed:
        return False
    return True


def upload(
    answer: ModuleType, objects: dict[str, bytes], step: int, attempt: int = 1
) -> dict[str, bytes]:
    """The objects after an upload, which was killed after each of its requests before."""
    content = content_of(step, attempt)
    when = f"step {step}{', trained once more' if attempt > 1 else ''}"
    before = [copy["step"] for copy in named(objects, when)]
    for requests in range(1, MOST):
        storage = Storage(objects, requests)
        if ends(answer, storage, content, step):
            return storage.objects
        after = f"{when}, killed after {storage.last}"
        steps = [copy["step"] for copy in named(storage.objects, after)]
        assert steps[:1] >= before[:1], f"{after}: the list names {steps}, before it {before}"
        again = Storage(storage.objects)  # the run goes on, and comes to the same step
        if ends(answer, again, content, step):
            after += ", and uploaded again"
            steps = [copy["step"] for copy in named(again.objects, after)]
            assert steps[:1] == [step], f"{after}: the list names {steps}"
    raise AssertionError(f"{when}: an upload has made {MOST - 1} requests, and goes on")


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    objects = {"run.json": b"whose run it is"}
    uploads = [(100, 1), (200, 1), (300, 1), (400, 1), (400, 2), (400, 2)]
    for number, (step, attempt) in enumerate(uploads, start=1):
        objects = upload(answer, objects, step, attempt)
        kept = named(objects, f"step {step} uploaded")
        names, steps = {copy["object"] for copy in kept}, [copy["step"] for copy in kept]
        contents = [objects[name] for name in names]
        assert content_of(step, attempt) in contents, f"the list names {steps}, and not the newest"
        assert len(names) == len(kept) == min(number, 2), (
            f"after {number} uploads the list names {sorted(names)}, and not the last 2: if one is "
            "damaged later, the other one has to do"
        )
        assert "run.json" in objects, "run.json is deleted, which somebody else has put there"
        left = sorted(objects.keys() - names - {"latest.json", "run.json"})
        assert not left, (
            f"after {number} uploads {left[0]} is still there, and nothing names it: it costs "
            "money for ever"
        )
    storage = Storage(objects, damage=True)
    try:
        error = "" if ends(answer, storage, content_of(500), 500) else "no end"
    except Exception as failure:  # an error says that it is not there: that is an answer as well
        error = str(failure) or "an error"
    when = "step 500, which arrives damaged"
    steps = [copy["step"] for copy in named(storage.objects, when)]
    assert error or steps[:1] == [500], f"{when}: the list names {steps}, and no error says so"
