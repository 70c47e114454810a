"""Drive a headless Chromium through its pipe: enough to look at pages, and nothing to install.

The protocol is documented at https://chromedevtools.github.io/devtools-protocol/; the messages are
JSON, each ended by a zero byte, on the file descriptors 3 and 4 of the browser.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 30.0  # seconds for one answer
# On Linux, a container or root has no sandbox of its own to offer.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}


def chromium() -> str | None:
    """The browser's path, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser with one page."""

    def __init__(self, program: str) -> None:
        self.profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        read, self.to = os.pipe()
        self.back, written = os.pipe()
        os.set_inheritable(read, True)
        os.set_inheritable(written, True)
        # The shell puts the pipes where Chromium looks for them, whatever their numbers are.
        line = f'exec "$0" "$@" 3<&{read} 4>&{written}'
        flags = [*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}"]
        self.process = subprocess.Popen(
            ["bash", "-c", line, program, *flags, "about:blank"],
            pass_fds=(read, written),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(written)
        self.rest, self.number, self.session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.profile.cleanup()

    def receive(self, until: float) -> dict[str, Any]:
        """The next message."""
        while b"\0" not in self.rest:
            if not select.select([self.back], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.back, 1 << 20)
            if not data:
                raise ConnectionError("the browser has ended")
            self.rest += data
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come before it are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data) :]
        until = time.monotonic() + PATIENCE
        while True:
            answer = self.receive(until)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method: str) -> None:
        """Wait for an event."""
        until = time.monotonic() + PATIENCE
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive(until))

    def open(self, url: str) -> None:
        """Load a page; ``events`` then holds what has happened since."""
        self.events.clear()
        answer = self.send("Page.navigate", url=url)
        if answer.get("errorText"):
            raise RuntimeError(f"{url}: {answer['errorText']}")
        self.wait("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Wait until an expression is true, and return its value."""
        until = time.monotonic() + PATIENCE
        while not (value := self.run(script)):
            if time.monotonic() > until:
                raise TimeoutError(f"is never true: {script}")
            time.sleep(0.05)
        return value

    def size(self, width: int, height: int) -> None:
        """Look through a window of this size; a narrow one is a phone."""
        is_phone = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone},
        )
        self.send("Emulation.setTouchEmulationEnabled", enabled=is_phone)

    def prefer(self, scheme: str) -> None:
        """Be a reader who has set the system to light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key; modifiers: 1 Alt, 2 Ctrl, 8 Shift."""
        code = KEYS.get(key) or ord(key.upper())
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 and not modifiers else "")
        given = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        self.send("Input.dispatchKeyEvent", type="keyUp", **given)

    def complaints(self) -> list[str]:
        """Errors of the console, exceptions, and requests that failed, since the page opened."""
        self.run("1")  # what came before is read
        found = []
        for event in self.events:
            data = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(data["exceptionDetails"].get("exception", data)))
            elif event.get("method") == "Log.entryAdded" and data["entry"]["level"] == "error":
                found.append(f"{data['entry']['text']} {data['entry'].get('url', '')}")
            elif event.get("method") == "Runtime.consoleAPICalled" and data["type"] == "error":
                found.append(str(data["args"]))
            elif event.get("method") == "Network.loadingFailed" and not data.get("canceled"):
                found.append(str(data))
        return found

    def requests(self) -> list[str]:
        """Addresses that the page has asked for."""
        sent = (event for event in self.events if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def picture(self, path: Path) -> None:
        """Save what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))
