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
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--allow-file-access-from-files",  # or a page could not look into its frames
    "--virtual-time-budget=1000000",  # milliseconds, which end when nothing moves any more
    "--dump-dom",
]
# Opens each page in a frame, and leaves what it finds as its own title.
CHECK = """<!doctype html><title></title><body><script>
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
  document.title = JSON.stringify(found);
})();
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a browser")
def test_each_page_in_a_browser(tmp_path):
    """Broken by: a picture that no page copies; a table without its own scroll bar."""
    pytest.importorskip("sphinx", reason="needs uv sync --group website")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", "appendix/website", "."]
    subprocess.run([*build, tmp_path], cwd=ROOT, check=True)
    pages = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")]
    pages.remove("index.html")  # leads to README.html
    check = tmp_path / "check.html"
    check.write_text(CHECK.replace("PAGES", json.dumps(pages)))
    command = [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path}/profile", check.as_uri()]
    page = subprocess.check_output(command, text=True, timeout=300)
    found = json.loads(html.unescape(re.findall("<title>(.*?)</title>", page)[0]))
    assert len(found) == 2 * len(pages)
    assert [each for each in found if each["wide"] or each["broken"]] == []
    pictures = {path.name for path in ROOT.glob("*/results/*.[ps][nv]g")}
    assert pictures - {name for each in found for name in each["shown"]} == set()
