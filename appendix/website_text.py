"""The texts of the website: Markdown with its links rewritten, and pages of source code."""

import html
import posixpath
import re
from collections.abc import Callable, Container, Iterable
from urllib.parse import quote, unquote

# What cog reads: the first line of a generated part, which may be a program, and the last one.
MARKER = re.compile(r"^<!-- \[\[\[(?:cog.*?\]\]\]|end\]\]\]) -->\n", re.MULTILINE | re.DOTALL)
# A block of code, a link or picture, or code within a line: what comes first wins, so that
# nothing within code is taken for a link, and a link may have code as its text.
TOKEN = re.compile(
    r"^(?P<indent> *)(?P<fence>```+).*?^(?P=indent)(?P=fence) *$"
    r"|(?P<picture>!?)\[(?P<label>(?:[^\[\]`]|`[^`]*`)*)\]\((?P<target>[^)\s]+)\)"
    r"|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)",
    re.MULTILINE | re.DOTALL,
)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def strip_markers(text: str) -> str:
    """Without cog's markers; what it has generated between them stays."""
    return MARKER.sub("", text)


def document(path: str) -> str:
    """Where the site keeps a Markdown page of the repository, without its ending."""
    folder, name = posixpath.split(posixpath.splitext(path)[0])
    return posixpath.join(folder, "index" if name == "README" else name.lower())


def source(path: str) -> str:
    """Where the site keeps a page of source code or of a folder, without its ending.

    A host of static pages may leave out what begins with a dot.
    """
    parts = posixpath.normpath(path).split("/")
    return "/".join(re.sub(r"^\.", "dot.", part) for part in parts)


def relative(page: str, target: str) -> str:
    """The way from one page of the site to another file of it, as it stands in a link."""
    return quote(posixpath.relpath(target, posixpath.dirname(page) or "."))


def resolved(path: str, target: str) -> tuple[str, str]:
    """The file of the repository that a link means, and the anchor in it with its ``#``."""
    name, hash_sign, anchor = target.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(name)))
    return file, hash_sign + anchor


def links(path: str, text: str) -> Iterable[tuple[bool, str]]:
    """The files of the repository that a Markdown page shows (True) or links to (False)."""
    for match in TOKEN.finditer(text):
        target = match["target"]
        if target and not OUTSIDE.match(target) and not target.startswith("#"):
            yield bool(match["picture"]), resolved(path, target)[0]


def rewrite(path: str, text: str, documents: Iterable[str]) -> str:
    """A Markdown page with links that lead to the pages of the site.

    Args:
        path: the page's place in the repository.
        text: its Markdown.
        documents: the Markdown pages that the site has; of all else it has a page of source.
    """
    page, known = document(path), set(documents)

    def replace(match: re.Match[str]) -> str:
        target = match["target"]
        # Pictures keep their places.
        if not target or match["picture"] or OUTSIDE.match(target) or target.startswith("#"):
            return match[0]
        file, anchor = resolved(path, target)
        if file in known:
            return f"[{match['label']}]({relative(page, document(file))}.md{anchor})"
        # The generator knows no pages of source: in HTML it leaves the link alone.
        url = f"{relative(page, source(file))}.html{anchor}"
        return f'<a href="{html.escape(url)}">{match["label"]}</a>'

    return TOKEN.sub(replace, text)


def source_page(path: str, text: str) -> str:
    """Source code as HTML; each line has an anchor, named as on GitHub: ``#L116``."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import TextLexer, get_lexer_for_filename
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_for_filename(posixpath.basename(path), stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    # Pygments closes its tags at the end of each line. Tab passes by the numbers: they are many.
    code = highlight(text, lexer, HtmlFormatter(nowrap=True)).removesuffix("\n").split("\n")
    rows = (
        f'<span id="L{n}"><a href="#L{n}" tabindex="-1">{n:4}</a> {line}</span>'
        for n, line in enumerate(code, start=1)
    )
    return f'<div class="highlight source"><pre>{chr(10).join(rows)}\n</pre></div>'


def folder_page(path: str, files: Iterable[str], known: Container[str]) -> str:
    """The files of a folder; those in ``known`` have a page, and a link to it."""
    rows = []
    for file in files:
        name = f"<code>{html.escape(posixpath.relpath(file, path))}</code>"
        url = f"{relative(source(path), source(file))}.html"
        rows.append(f'<li><a href="{url}">{name}</a></li>' if file in known else f"<li>{name}</li>")
    return f"<ul>\n{chr(10).join(rows)}\n</ul>"


def framed(path: str, body: str, back: Callable[[str], str]) -> str:
    """A page of the repository's files: its name, the way back to its chapter, its content."""
    folder = path.partition("/")[0] if "/" in path else "."
    title, where = html.escape(path), back(folder)
    return f'<section class="file-page"><h1>{title}</h1>\n<p>{where}</p>\n{body}\n</section>'
