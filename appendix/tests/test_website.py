"""The website in a browser without a screen: as wide as a desktop, and as a phone."""

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
OPTIONS.append(
    "--allow-file-access-from-files"
)  # or a page cannot look into its frames
FRAME = '<iframe src="{}" style="width: {}px; height: 900px"></iframe>'
# Looks into each frame, and leaves what it finds as the page's title.
CHECK = """<script>
function look(frame) {
  const inside = frame.contentDocument;
  const images = [...inside.images];
  const name = (image) => image.src.split("/").pop();
  return {
    page: frame.outerHTML,
    isWide: inside.documentElement.scrollWidth > frame.clientWidth,
    broken: images.filter((image) => !image.naturalWidth).map(name),
    shown: images.map(name),
  };
}
onload = () => {
  document.title = JSON.stringify([...document.querySelectorAll("iframe")].map(look));
};
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a browser")
def test_each_page_in_a_browser(tmp_path):
    """Broken by: a picture that no page copies; a table without its own scroll bar."""
    pytest.importorskip("sphinx", reason="needs uv sync --group website")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", "appendix/website", "."]
    subprocess.run([*build, tmp_path], cwd=ROOT, check=True)
    pages = [path for path in tmp_path.rglob("*.html") if path.name != "index.html"]
    frames = [FRAME.format(page, width) for page in pages for width in (1280, 390)]
    check = tmp_path / "check.html"
    check.write_text("".join(["<!doctype html>", *frames, CHECK]))
    page = subprocess.check_output([BROWSER, *OPTIONS, check], text=True)
    found = json.loads(html.unescape(re.findall("<title>(.*?)</title>", page)[0]))
    assert len(found) == len(frames)
    assert [each for each in found if each["isWide"] or each["broken"]] == []
    shown = {name for each in found for name in each["shown"]}
    assert {path.name for path in ROOT.glob("*/results/*.[ps][nv]g")} <= shown
