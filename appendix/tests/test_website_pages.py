"""The website of this repository: complete, and in a browser it works for everybody."""

import functools
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import chapters
import pytest
import website_check
import website_text
from browser import Browser, chromium
from chapters import ROOT

import website

# The generator and the browser are slow on busy cores.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
# Where there has to be one, a test without it fails.
needs_browser = pytest.mark.skipif(
    chromium() is None and "REQUIRE_BROWSER" not in os.environ, reason="needs Chromium on PATH"
)
PHONE, DESKTOP = (390, 844), (1400, 900)
CTRL = 2
# What has the focus, as soon as it shows: some of it fades in.
FOCUS = """(() => {
  const one = document.activeElement, style = getComputedStyle(one);
  const box = one.getBoundingClientRect();
  const text = (one.getAttribute("aria-label") || one.textContent).trim().split("\\n")[0];
  const isRing = !/^(none|rgba\\(0, 0, 0, 0\\))/.test(style.boxShadow);
  const isSeen = style.outlineStyle !== "none" || isRing;
  const isInside = box.width > 0 && box.bottom > 0 && box.left < innerWidth;
  return text && isSeen && isInside && { text };
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for name in ("sphinx", "myst_parser", "pydata_sphinx_theme"):
        pytest.importorskip(name, reason="needs: uv run --group website")
    place = tmp_path_factory.mktemp("website") / "site"
    website.build(ROOT, place)
    return place


@pytest.fixture(scope="module")
def known(site) -> dict[str, website_check.Page]:
    return website_check.pages(site)


@pytest.fixture(scope="module")
def served(site) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def page() -> Iterator[Browser]:
    program = chromium()
    assert program, "Chromium is not on PATH"
    with Browser(program) as found:
        found.size(*DESKTOP)
        yield found


def test_complete(site, known):
    """Nothing is broken, and there is a page for each text, difference and linked file."""
    assert website_check.problems(site, known) == []
    names = website.documents(ROOT)
    places = ("*.md", "[0-9]_*/README.md", "[0-9]_*/*/README.md", "appendix/README.md")
    texts = {path.relative_to(ROOT).as_posix() for place in places for path in ROOT.glob(place)}
    assert set(names) == texts
    assert {f"{website_text.document(name)}.html" for name in names} <= set(known)
    for chapter in chapters.chapters(ROOT)[1:]:
        assert f"{chapter}/changes.html" in known
        assert "changes.html" in known[f"{chapter}/index.html"].links
    pictures, files = website.linked(ROOT, names)
    assert len(list((site / "_images").iterdir())) == len(pictures)
    assert len(known) == len(names) + len(chapters.chapters(ROOT)[1:]) + len(files) + 1  # search
    assert not [name for name in known if "/." in f"/{name}"]
    for path in site.rglob("index.html"):
        assert "[[[" not in path.read_text()


LOOK = """({
  title: document.querySelector("h1").innerText.trim(),
  width: document.documentElement.scrollWidth,
  colour: getComputedStyle(document.body).backgroundColor,
  blocks: document.querySelectorAll("div.highlight > pre").length,
  buttons: document.querySelectorAll("button.copy").length,
  broken: [...document.images].filter((one) => one.complete && !one.naturalWidth).length,
})"""
WHITE = "rgb(255, 255, 255)"


def one_file(page: website_check.Page) -> bool:
    """Whether the page shows a file, with a number at each line."""
    return "L1" in page.names


def shown(site: Path, known: dict[str, website_check.Page]) -> list[str]:
    """Pages to look at: of the hundreds of single files the longest and the widest of each kind.

    One function makes them all, and ``test_complete`` reads them all. With FULL_MATRIX=1, as in the
    workflow that puts the site online, it is every page.
    """
    texts = [name for name, page in known.items() if not one_file(page)]
    files = [name for name, page in known.items() if one_file(page)]
    if os.environ.get("FULL_MATRIX"):
        return texts + files
    kinds: dict[str, list[str]] = {}
    for name in files:
        kinds.setdefault(Path(name).with_suffix("").suffix, []).append(name)
    lines = {name: (site / name).read_text().splitlines() for name in files}
    longest = {max(names, key=lambda name: len(lines[name])) for names in kinds.values()}
    widest = {max(names, key=lambda name: max(map(len, lines[name]))) for names in kinds.values()}
    return texts + sorted(longest | widest)


def assert_well(page: Browser, name: str, width: int) -> dict:
    """What one sees of an open page, which has to be whole and no wider than the window."""
    found = page.run(LOOK)
    assert found["title"], name
    assert found["width"] <= width, name
    assert found["blocks"] == found["buttons"], name
    assert found["broken"] == 0, name
    assert page.complaints() == [], name
    assert all(url.startswith(("file:", "data:")) for url in page.requests()), name
    return found


@needs_browser
def test_pages_on_a_phone(site, known, page):
    page.prefer("light")
    page.size(*PHONE)
    for name in shown(site, known):
        page.open((site / name).as_uri())
        assert assert_well(page, name, PHONE[0])["colour"] == WHITE, name


@needs_browser
def test_every_text_on_a_desk_in_the_dark(site, known, page):
    """Pages of single files are all alike: for them the phone is enough, which is the narrower."""
    page.prefer("dark")
    for name in (name for name, found in known.items() if not one_file(found)):
        page.open((site / name).as_uri())
        assert assert_well(page, name, DESKTOP[0])["colour"] != WHITE, name


@needs_browser
def test_copies_commands_without_their_output(site, page):
    page.open((site / "0_setup/index.html").as_uri())
    page.run("window.copied = []; navigator.clipboard.writeText = async (t) => copied.push(t)")
    page.run("document.querySelectorAll('button.copy').forEach((button) => button.click())")
    copied = page.run("copied")
    assert copied[0] == "cd 0_setup\nuv run python pytorch_train.py\n"
    assert copied[1] == "uv run python pytorch_train.py\n"  # of a console with its output
    page.wait_for("document.querySelector('button.copy').textContent === 'Copied'")
    page.open((site / "0_setup/pytorch_train.py.html").as_uri())
    page.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.run("document.querySelector('button.copy').click()")
    assert page.run("copied") == (ROOT / "0_setup/pytorch_train.py").read_text()


@needs_browser
@pytest.mark.parametrize("by", ["disk", "server"])
def test_search_by_keyboard(site, served, page, by):
    page.open(f"{site.as_uri() if by == 'disk' else served}/index.html")
    page.press("k", CTRL)
    page.wait_for("document.activeElement.matches('dialog[open] input')")
    for letter in "climatology":
        page.press(letter)
    page.events.clear()
    page.press("Enter")
    page.wait("Page.loadEventFired")
    first = "document.querySelector('#search-results li a')"
    assert "0_setup/index.html" in page.wait_for(f"{first} && {first}.href")
    # Excerpts are read from the pages, which a page on the disk may not do.
    excerpts = "document.querySelectorAll('#search-results .context').length > 0"
    assert page.wait_for(excerpts) if by == "server" else not page.run(excerpts)
    assert page.complaints() == []


def press_tab(page: Browser, wanted: list[str]) -> None:
    """Press Tab until all that is wanted has had the focus, in this order; each step is seen."""
    for _ in range(80):
        page.press("Tab")
        focus = page.wait_for(FOCUS)
        if focus["text"].startswith(wanted[0]):
            wanted = wanted[1:]
        if not wanted:
            return
    pytest.fail(f"Tab has not reached {wanted[0]}")


@needs_browser
def test_tab_reaches_everything(site, page):
    page.open((site / "index.html").as_uri())
    menu = ["Search", "Color mode", "0. The setup", "What chapter 1 changes", "Appendix"]
    press_tab(page, ["Skip to main content", *menu, "Copy", "0_setup", "Start"])
    # The difference of a chapter: its list of files, and the lines that are folded in.
    page.open((site / "1_multi_gpu/changes.html").as_uri())
    press_tab(page, ["What chapter 1 changes", "src/model/lightning_module.py"])
    page.run("document.querySelector('.changes summary').focus()")
    page.press("Enter")
    assert page.run("document.activeElement.parentElement.open")
    # The menu of a phone opens, is walked through, and closes.
    page.size(*PHONE)
    page.open((site / "index.html").as_uri())
    press_tab(page, ["Site navigation"])
    page.press("Enter")
    page.wait_for("document.querySelector('dialog[open] a') !== null")
    press_tab(page, ["Color mode", "0. The setup", "Appendix"])
    page.press("Escape")
    page.wait_for("document.querySelector('dialog[open]') === null")
    press_tab(page, ["Search"])


@needs_browser
def test_a_link_to_a_line_shows_it(site, page):
    page.open((site / "0_setup/pytorch_train.py.html").as_uri() + "#L116")
    top = page.run("document.querySelector('#L116').getBoundingClientRect().top")
    header = page.run("document.querySelector('#pst-header').getBoundingClientRect().bottom")
    assert header <= top < DESKTOP[1]
    style = "getComputedStyle(document.querySelector(name)).backgroundColor"
    colours = f"['#L115', '#L116'].map((name) => {style})"
    assert page.run(f"new Set({colours}).size") == 2
