"""What mkdocs calls while it builds the site."""

from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docsite.diagrams import as_pictures
from docsite.generated import api_pages, commands, file_as_it_is, options
from docsite.links import for_the_site, linked_files
from docsite.listing import navigation, with_list
from docsite.places import DOCS, ROOT, SOURCE, members, page_of

OTHERS: Final = ["CONTRIBUTING.md", "CHANGELOG.md", *map(str, members())]
"""Pages that are no files of docs/."""
WRITTEN: Final = {
    "reference/cli.md": ("<!-- the site lists all commands here -->", commands),
    "reference/plugins.md": ("<!-- the site lists all options here -->", options),
}
"""Pages that end with what is written when the site is."""
_path_of: Final[dict[str, str]] = {}
"""The files of the repository that pages are made of, by page."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The sidebar lists what is in the folders."""
    config.nav = navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/, and the files that pages link to."""
    _path_of.clear()
    texts: dict[str, str] = {}
    for file in files.documentation_pages():
        texts[f"{DOCS}{file.src_uri}"] = file.content_string
    for path in OTHERS:
        texts[path] = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page_of(path), content=texts[path]))
    for path in texts:
        _path_of[page_of(path)] = path
    for path, text in texts.items():
        for linked in linked_files(text, path):
            shown = page_of(linked) if (ROOT / linked).exists() else ""
            if shown.startswith(SOURCE) and shown not in files.src_uris:
                files.append(File.generated(config, shown, content=file_as_it_is(linked)))
    for page, text in api_pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead to pages of the site, diagrams are pictures, and lists are filled."""
    place = page.file.src_uri
    if place not in _path_of:
        return markdown
    text = with_list(for_the_site(markdown, _path_of[place]), place)
    if place in WRITTEN:
        mark, write = WRITTEN[place]
        text = text.replace(mark, write())

    def add(name: str, svg: str) -> None:
        if name not in files.src_uris:
            files.append(File.generated(config, name, content=svg))

    return as_pictures(text, "../" * place.count("/"), add)
