"""Build the website of the book from the READMEs, in output/website.

uv run --group website python appendix/website.py    build, and check every link and picture
uv run python -m http.server -d output/website       look at it; or open its index.html

It holds the READMEs, their pictures, the side-by-side difference of each chapter to the one before,
and a page for each file that a README links to. It needs no network, neither to build nor to read.
With ``--repository https://github.com/OWNER/NAME`` it links to the repository.
"""

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import chapter_diff
import chapters
import website_check
import website_text
from carry import is_text, write
from chapters import ROOT
from git_files import Content, UserError, read

SETTINGS = "website"
OUTPUT = "output/website"
MARK = ".buildinfo"  # Sphinx leaves it in what it builds
SHOWN = 10  # lines of an error
TOCTREE = "\n```{{toctree}}\n:hidden:\n:maxdepth: 2\n\n{}\n```\n"


def documents(root: Path) -> list[str]:
    """The Markdown pages of the book, in reading order."""
    found = ["README.md"]
    for folder in [*chapters.chapters(root), "appendix"]:
        inside = [name for name in chapters.files(root, folder) if name.endswith("/README.md")]
        found += [f"{folder}/{name}" for name in ("README.md", *inside)]
    found.append("CONTRIBUTING.md")
    return [path for path in found if (root / path).is_file()]


def introduced(text: str, line: str) -> str:
    """The text with a line of its own below its title."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{line}\n{rest}"


def markdown(root: Path, path: str, known: list[str]) -> str:
    """A README as the site has it: links rewritten, and what belongs to its menu."""
    text = website_text.strip_markers((root / path).read_text(encoding="utf-8"))
    text = website_text.rewrite(path, text, known)
    folder = path.rpartition("/")[0]
    if path == "README.md":
        menu = [website_text.document(one) for one in known if one != path and one.count("/") < 2]
        return text + TOCTREE.format("\n".join(menu))
    if folder not in chapters.chapters(root)[1:]:
        return text
    old = chapters.before(root, folder)
    text = introduced(text, f"[What this chapter changes, side by side](changes.md), since {old}.")
    inside = [one.removeprefix(f"{folder}/") for one in known if one.startswith(f"{folder}/")]
    menu = [website_text.document(one) for one in inside if one != "README.md"]
    return text + TOCTREE.format("\n".join(["changes", *menu]))


def changes(root: Path, chapter: str) -> str:
    """The side-by-side difference to the chapter before, as a Markdown page around HTML."""
    old = chapters.before(root, chapter)
    page = chapter_diff.page(root, old, chapter)
    found = re.search(r"<nav.*?<p>(.*?)</p>\s*(<ol>.*?</ol>).*?<main>(.*)</main>", page, re.DOTALL)
    if not found:
        raise UserError(f"chapter_diff.py makes a page for {chapter} without a list or lines")
    body = f'<div class="changes"><p>{found[1]}</p>\n{found[2]}\n{found[3]}</div>'
    return (
        "---\nnosearch: true\n---\n\n"
        f"# What chapter {chapter.partition('_')[0]} changes\n\n"
        f"`{chapter}` against `{old}`, the files in reading order.\n\n"
        f"`````{{raw}} html\n{body}\n`````\n"
    )


def back(root: Path, page: str, folder: str) -> str:
    """A link to the chapter that a file belongs to."""
    target = f"{folder}/index" if (root / folder / "README.md").is_file() else "index"
    text = "Back to the start" if folder == "." else f"Back to {html.escape(folder)}"
    return f'<a href="{website_text.relative(page, target)}.html">{text}</a>'


def file_page(root: Path, path: str, known: set[str]) -> tuple[str, str]:
    """Title and HTML of the page of a file or folder; ``known`` are all that have a page."""
    place, page = root / path, website_text.source(path)
    if place.is_dir():
        inside = [f"{path}/{name}" for name in chapters.files(root, path)]
        body = website_text.folder_page(path, inside, known)
    else:
        body = website_text.source_page(path, place.read_text(encoding="utf-8"))
    return path, website_text.framed(path, body, lambda folder: back(root, page, folder))


def linked(root: Path, known: list[str]) -> tuple[set[str], set[str]]:
    """The pictures that the READMEs show, and the files that they link to, with their folders'."""
    pictures: set[str] = set()
    files: set[str] = set()
    for path in known:
        for is_picture, file in website_text.links(path, (root / path).read_text("utf-8")):
            if not (root / file).exists():
                raise UserError(f"{path}: there is no {file}")
            if not is_picture and not (root / file).is_dir() and not is_text(read(root / file)):
                raise UserError(f"{path}: {file} is no text, so the site has no page for it")
            (pictures if is_picture else files).add(file)
    for folder in [file for file in files if (root / file).is_dir()]:
        inside = {f"{folder}/{name}" for name in chapters.files(root, folder)}
        files |= {name for name in inside if is_text(read(root / name))}
    return pictures, files - set(known)


def gather(root: Path, folder: Path, repository: str = "") -> None:
    """Write what the generator reads: Markdown, pictures, and pages that are HTML already."""
    known = documents(root)
    pictures, files = linked(root, known)
    texts = {website_text.document(path): markdown(root, path, known) for path in known}
    texts |= {f"{name}/changes": changes(root, name) for name in chapters.chapters(root)[1:]}
    for name, text in texts.items():
        write(folder / f"{name}.md", Content(text.encode()))
    for path in pictures:
        write(folder / path, Content((root / path).read_bytes()))
    found = {website_text.source(path): file_page(root, path, files) for path in sorted(files)}
    data = json.dumps({"repository": repository, "pages": found})
    write(folder / "site.json", Content(data.encode()))


def generate(settings: Path, source: Path, site: Path) -> None:
    """Run Sphinx; its warnings are errors."""
    if not all(map(find_spec, ("sphinx", "myst_parser", "pydata_sphinx_theme"))):
        raise UserError("packages are missing: uv run --group website python appendix/website.py")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "-q", "-j", "auto"]
    command += ["-c", str(settings), "-d", str(source.parent / "doctrees"), str(source), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.replace(f"{source}/", "") for line in done.stderr.splitlines() if line]
        raise UserError("\n".join(["Sphinx complains", *lines[:SHOWN]]))


def replace(site: Path, place: Path) -> None:
    """Put the new site where the old one is; nothing but a site is ever removed."""
    if place.exists():
        if any(place.iterdir()) and not (place / MARK).is_file():
            raise UserError(f"{place} is no website, and not empty: give another --output")
        shutil.rmtree(place)
    site.rename(place)


def build(root: Path, place: Path, repository: str = "") -> int:
    """Build the site and check it; returns the number of its pages."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, so that the old site stays until the new one is complete.
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".website-") as folder:
        source, site = Path(folder) / "source", Path(folder) / "site"
        gather(root, source, repository)
        generate(root / SETTINGS, source, site)
        known = website_check.pages(site)
        found = website_check.problems(site, known)
        if found:
            raise UserError("\n".join([f"{len(found)} problems", *found[:SHOWN]]))
        replace(site, place)
    return len(known)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Build; a problem is told, and leaves the site as it was."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=f"instead of {OUTPUT}")
    parser.add_argument("--repository", default="", metavar="URL", help="where the code is")
    given = parser.parse_args(arguments)
    place = (given.output or root / OUTPUT).absolute()
    if given.repository and not given.repository.startswith("https://"):
        parser.error(f"--repository: {given.repository} does not begin with https://")
    try:
        count = build(root, place, given.repository)
    except (UserError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    print(f"wrote {count} pages; open {os.path.relpath(place / 'index.html')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
