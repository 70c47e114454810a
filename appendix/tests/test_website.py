"""The website in a browser without a screen: as wide as a desktop, and as a phone."""

import functools
import http.server
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
# Opens each page in a frame, and sends what it finds to the server.
CHECK = """<!doctype html><title>check</title><body><script>
async function look(page, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 900px`;
  frame.src = page;
  document.body.append(frame);
  await new Promise((done) => (frame.onload = done));
  const inside = frame.contentDocument;
  const images = [...inside.images];
  for (const image of images) image.loading = "eager";
  await Promise.all(images.map((image) => image.decode().catch(() => 0)));
  const wide = inside.documentElement.scrollWidth > width;
  const broken = images.filter((image) => !image.naturalWidth).map((image) => image.src);
  frame.remove();
  const shown = images.map((image) => image.src.split("/").pop());
  return { page, width, wide, broken, shown };
}
(async () => {
  const found = [];
  for (const page of PAGES)
    for (const width of [1280, 390]) found.push(await look(page, width));
  fetch("/found", { method: "POST", body: JSON.stringify(found) });
})();
</script>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files, and takes what the browser has found."""

    found: queue.Queue[bytes] = queue.Queue()

    def do_POST(self) -> None:
        self.found.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print no line for each request."""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a browser")
def test_each_page_in_a_browser(tmp_path):
    """Broken by: a picture that no page copies; a table without its own scroll bar."""
    pytest.importorskip("sphinx", reason="needs uv sync --group website")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", "appendix/website"]
    subprocess.run([*command, ".", str(site)], cwd=ROOT, check=True)
    pages = [str(path.relative_to(site)) for path in site.rglob("*.html")]
    assert "index.html" in pages
    (site / "check.html").write_text(CHECK.replace("PAGES", json.dumps(pages)))
    handler = functools.partial(Handler, directory=site)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    options += ["--window-size=1400,1000", f"--user-data-dir={tmp_path}/profile"]
    console = tmp_path / "console"
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        console.open("w") as log,
    ):
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_port}/check.html"
        command = [BROWSER, *options, "--remote-debugging-port=0", address]
        with subprocess.Popen(command, stderr=log, start_new_session=True) as browser:
            try:
                found = json.loads(Handler.found.get(timeout=200))
            finally:
                os.killpg(browser.pid, signal.SIGKILL)
                server.shutdown()
    assert len(found) == 2 * len(pages)
    pictures = {path.name for path in ROOT.glob("*/results/*.[ps][nv]g")}
    shown = {name for each in found for name in each["shown"]}
    assert pictures - shown == set()
    assert [each for each in found if each["wide"] or each["broken"]] == []
    errors = [line for line in console.read_text().splitlines() if "CONSOLE" in line]
    assert errors == []
