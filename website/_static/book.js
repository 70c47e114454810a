// What the theme does not have: copy buttons, and a search that works from the disk.

// There a page may not read another one, so the results have no excerpts.
if (location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// A button on each block of code copies it: without line numbers, and of a console its commands.
function textOf(pre, isConsole) {
  const copy = pre.cloneNode(true);
  copy.querySelectorAll("a").forEach((number) => number.remove());
  // Beside each line number stands a space.
  const lines = copy.textContent.split("\n").map((line) =>
    pre.parentElement.classList.contains("source") ? line.replace(/^ /, "") : line);
  const commands = [];
  let goesOn = false;
  for (const line of lines) {
    if (line.startsWith("$ ") || goesOn) {
      commands.push(line.replace(/^\$ /, ""));
      goesOn = line.endsWith("\\");
    }
  }
  return isConsole && commands.length ? commands.join("\n") + "\n" : lines.join("\n");
}

function addButton(pre) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-live", "polite"); // so that "Copied" is read out
  button.addEventListener("click", async () => {
    try {
      const isConsole = pre.closest(".highlight-console") !== null;
      await navigator.clipboard.writeText(textOf(pre, isConsole));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed"; // the browser decides who may write there
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  pre.parentElement.append(button);
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("div.highlight > pre").forEach(addButton);
});
