"""Settings of the website for Sphinx, which appendix/website.py starts.

Why these packages. Sphinx, MyST and the PyData theme are kept up by communities and have had
releases this year. MkDocs has had none since 2024, the end of its Material theme is announced for
2027, and that one's successor, Zensical, is a young beta version. MyST reads Markdown as GitHub
does, lists, tables and anchors included, so one text serves both. Search, menus and icons are
files of the site: it works offline, and straight from the disk.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

project = "Training at larger scale"
extensions = ["myst_parser"]
myst_heading_anchors = 4  # names of headings as GitHub makes them
smartquotes = False  # quotes and dashes stay as they were typed
nitpicky = True

html_theme = "pydata_sphinx_theme"
html_title = project
html_baseurl = ""
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_sidebars = {"**": ["book-nav.html"]}  # all chapters, on every page
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
html_theme_options: dict[str, Any] = {
    "logo": {"text": project},
    "navbar_center": [],
    "primary_sidebar_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "search_bar_text": "Search the book",
    "footer_start": [],
    "footer_end": [],
    "show_toc_level": 2,
}


def add_repository(app: Sphinx, config: Any) -> None:
    """Link to the repository, if website.py was told where it is."""
    url = json.loads((Path(app.srcdir) / "site.json").read_text("utf-8"))["repository"]
    if url:
        link = {"name": "Repository", "url": url, "icon": "fa-brands fa-git-alt"}
        config.html_theme_options["icon_links"] = [link]


def file_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The pages that come as HTML: source code, which search leaves out."""
    found = json.loads((Path(app.srcdir) / "site.json").read_text("utf-8"))["pages"]
    for name, (title, body) in found.items():
        yield name, {"title": title, "body": body}, "page.html"


def setup(app: Sphinx) -> dict[str, Any]:
    """Join in where Sphinx has read these settings, and where it asks for more pages."""
    app.connect("config-inited", add_repository)
    app.connect("html-collect-pages", file_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
