"""What is wrong with the pages of a built website: links, anchors, pictures, foreign hosts."""

import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself, unlike a link that the reader follows.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
FOREIGN = re.compile(r"""(?:@import\s+|url\(\s*)["']?((?:https?:)?//[^"')\s]+)""")
COLOURS = re.compile(r'<span class="[^"]*">|</span>')  # nearly all tags of a page with code


class Page(HTMLParser):
    """Collects what a page is called, names, shows, loads and links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.without_text: list[str] = []  # pictures that say nothing to who cannot see them
        self.titles = 0
        self.language = ""
        self.feed(COLOURS.sub("", text))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names += [given["id"]] if "id" in given else []
        self.titles += tag == "h1"
        if tag == "html":
            self.language = given.get("lang", "")
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loads.append(given.get("href", ""))
        if given.get(LOADED.get(tag, "")):
            self.loads.append(given[LOADED[tag]])
        if tag == "img" and not given.get("alt"):
            self.without_text.append(given.get("src", ""))


def pages(site: Path) -> dict[str, Page]:
    """All pages by their paths in the site; templates that a script fills in are none."""
    found = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)
    return {path.relative_to(site).as_posix(): Page(path.read_text("utf-8")) for path in found}


def broken(site: Path, known: dict[str, Page], name: str) -> Iterator[str]:
    """What is wrong with one page."""
    page = known[name]
    if page.titles != 1:
        yield f"{page.titles} headings of the first level"
    if not page.language:
        yield "no language"
    yield from (f"picture without a text: {picture}" for picture in page.without_text)
    yield from (f"two elements named {n}" for n in set(page.names) if page.names.count(n) > 1)
    for target in {*page.links, *page.loads}:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            if target in page.loads and parts.scheme != "data":
                yield f"loads from another host: {target}"
            continue
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
        path = path if parts.path else name
        if path.startswith("..") or not (site / path).is_file():
            yield f"leads nowhere: {target}"
        elif parts.fragment and path in known and unquote(parts.fragment) not in known[path].names:
            yield f"no such anchor: {target}"


def problems(site: Path, known: dict[str, Page]) -> list[str]:
    """A line for each thing that is wrong with the pages; nothing if all is well."""
    found = [f"{name}: {what}" for name in known for what in sorted(broken(site, known, name))]
    for sheet in sorted(site.rglob("*.css")):
        for url in FOREIGN.findall(sheet.read_text("utf-8")):
            found.append(f"{sheet.relative_to(site).as_posix()}: loads from another host: {url}")
    return found
