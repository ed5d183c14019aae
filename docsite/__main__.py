"""Build the documentation site: `python -m docsite [--site-dir DIR]`.

Writes every page as Markdown and lets Zensical make a site of them. A site holds one folder a version, which the
version selector reads from `versions.json`; its first page leads to the newest.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import yaml

from docsite.diagrams import as_pictures
from docsite.generated import NO_SEARCH, api_pages, commands, file_as_it_is, options
from docsite.links import for_the_site, linked_files
from docsite.listing import list_versions, navigation, with_list
from docsite.places import DOCS, ROOT, SOURCE, members, page_of

OTHERS: Final = ["CONTRIBUTING.md", "CHANGELOG.md", *map(str, members())]
"""Pages that are no files of docs/."""
WRITTEN: Final = {
    "reference/cli.md": ("<!-- the site lists all commands here -->", commands),
    "reference/plugins.md": ("<!-- the site lists all options here -->", options),
}
"""Pages that end with text generated from what is installed: its placeholder, and the function that writes it."""
DECISIONS: Final = "decisions/"
"""Folder of pages for contributors, which neither the sidebar nor the search lists."""


def write_pages(folder: Path) -> None:
    """Write every page of the site, its pictures and diagrams into `folder`, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / DOCS, folder, ignore=shutil.ignore_patterns("*.md"))

    def add(name: str, text: str) -> None:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    paths = [str(path.relative_to(ROOT)) for path in sorted((ROOT / DOCS).rglob("*.md"))] + OTHERS
    for path in paths:
        text, page = (ROOT / path).read_text(encoding="utf-8"), page_of(path)
        for linked in linked_files(text, path):
            if (ROOT / linked).exists() and page_of(linked).startswith(SOURCE):
                add(page_of(linked), file_as_it_is(linked))
        text = with_list(for_the_site(text, path), page)
        if page in WRITTEN:
            placeholder, write = WRITTEN[page]
            text = text.replace(placeholder, write())
        text = f"{NO_SEARCH}{text}" if page.startswith(DECISIONS) else text
        add(page, as_pictures(text, "../" * page.count("/"), add))
    for page, text in api_pages().items():
        add(page, text)


def build(site: Path, version: str) -> int:
    """Build the pages of `version` into a folder of `site`; return the exit status of Zensical, 1 for a broken link."""
    with TemporaryDirectory() as name:
        work = Path(name)
        write_pages(work / "docs")
        settings = (ROOT / "zensical.yml").read_text(encoding="utf-8") + yaml.safe_dump({"nav": navigation()})
        (work / "zensical.yml").write_text(settings, encoding="utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(work / "zensical.yml")]
        path = os.pathsep.join(map(str, [ROOT, ROOT / "core/src"]))
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
        if done.returncode == 0:
            shutil.rmtree(site / version, ignore_errors=True)
            shutil.copytree(work / "site", site / version)
            list_versions(site)
    return done.returncode


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m docsite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--site-dir", type=Path, default=ROOT / "build/site", help="Folder to write to (default: build/site)."
    )
    return build(parser.parse_args().site_dir.resolve(), (ROOT / "VERSION").read_text(encoding="utf-8").strip())


if __name__ == "__main__":
    sys.exit(main())
