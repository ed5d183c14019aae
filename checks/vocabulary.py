"""Check pages, strings and comments of sources, charts and scenarios against docs/reference/vocabulary.yaml.

`python -m checks.vocabulary` prints `FILE:LINE: banned word; remedy` for each finding. Identifiers are checked for
their spelling. Errors, logs and output must not have former names of options, commands and paths either, as the
glossary lists them.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).parents[1]
VOCABULARY: Final = ROOT / "docs/reference/vocabulary.yaml"
GLOSSARY: Final = VOCABULARY.parent / "glossary.md"
PAGES: Final = ("*.md", "docs/**/*.md", "*/README.md", "plugins/*/README.md")
SOURCES: Final = (
    "*/src/**/*.py",
    "plugins/*/src/**/*.py",
    "bench/**/*.py",
    "demo/*.py",
    "docsite/*.py",
    "release/*.py",
)
OTHERS: Final = ("*/src/**/*.[hj]*", "scenarios/**/*.yaml", "deploy/**/*.*", "*.toml", "*/*.toml", "Makefile")
"""Files of which everything is read: scripts and pages of the dashboard, scenarios, charts, projects."""
FORMER_NAMES: Final = "\n## Former names\n"
"""Heading of the table of old names in the glossary, which is not read."""
LINK: Final = re.compile(r"\]\([^)\s]*\)|https?://\S+")
OUTPUT: Final = {"debug", "info", "warning", "error", "exception", "critical", "log", "print", "echo", "secho"}
"""Functions and methods that log or print their arguments."""
FORMER_ROW: Final = re.compile(
    r"^\| (option|config\.pbtxt|command|path) \| `([^`:=]+?)(?:[:=][^`]*| [A-Z][^`]*)?` \| (.*) \|$", re.MULTILINE
)

Rule = tuple[re.Pattern[str], str]
Vocabulary = dict[str, list[dict[str, str]]]


def rules(banned: list[dict[str, str]]) -> list[Rule]:
    """Return a pattern and a remedy for each banned word; `*` at its end stands for any letters.

    A word that begins with `-` is a part of a word, for spellings in identifiers.
    """
    made = []
    for each in banned:
        word = r"\s+".join(map(re.escape, each["word"].strip("-*").split()))
        if not each["word"].startswith("-"):
            before = "".join(rf"(?<!{text} )" for text in each.get("not_after", "").split(", ") if text)
            word = rf"(?<![A-Za-z]){before}{word}" + ("" if each["word"].endswith("*") else "(?![A-Za-z])")
        made.append((re.compile(word, re.IGNORECASE), each["use"]))
    return made


def findings(text: str, line: int, banned: list[Rule]) -> Iterator[tuple[int, str, str]]:
    """Yield line, word and remedy for each banned word of a text that begins at `line`."""
    text = LINK.sub(lambda match: re.sub(r"\S", " ", match[0]), text)
    for pattern, remedy in banned:
        for match in pattern.finditer(text):
            yield line + text.count("\n", 0, match.start()), match[0], remedy


def former_names(glossary: str) -> list[Rule]:
    """Return a pattern and a remedy for each former name: of an option where it is quoted or has a field after it."""
    made = []
    for kind, name, new in FORMER_ROW.findall(glossary):
        if new.startswith(f"`{name}:"):  # only its fields have other names
            continue
        text = re.escape(name).replace("NAME", r"\S+").replace(r"\.N\.", r"\.\S+\.")
        if kind == "option" and "." not in name:
            text = rf"(?<=[`'\"]){text}(?=[`'\"])|(?<![\w./]){text}(?=\.[a-z])"
        made.append((re.compile(rf"(?<![\w.-])(?:{text})(?![\w-])"), f"write {new}"))
    return made


def messages_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that a module raises, logs or prints, directly or from a local variable."""
    tree = ast.parse(source)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    for scope in (tree, *functions):
        assigned: dict[str, list[ast.expr]] = {}
        for node in ast.walk(scope) if scope is not tree else ():
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.JoinedStr | ast.IfExp):
                for target in node.targets:
                    assigned.setdefault(getattr(target, "id", ""), []).append(node.value)
        for message in _messages_within(scope):
            yield from _strings_within(message)
            for name in {each.id for each in ast.walk(message) if isinstance(each, ast.Name)}:
                for value in assigned.get(name, ()):
                    yield from _strings_within(value)


def _messages_within(scope: ast.AST) -> Iterator[ast.Call]:
    """Yield each call in a scope that makes an exception to raise, logs or prints."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield node.exc
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in OUTPUT:
            yield node


def _strings_within(node: ast.AST) -> Iterator[tuple[int, str]]:
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in each.values)
            yield each.lineno, "".join(map(str, parts))
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.lineno, each.value


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string and comment in a module."""
    yield from _strings_within(ast.parse(source))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def check(root: Path, vocabulary: Vocabulary) -> dict[str, list[str]]:
    """Return the findings in every page and source below `root`, by file."""
    banned = rules(vocabulary["banned"])
    spelling = rules([each for each in vocabulary["banned"] if each["word"].startswith("-")])
    any_banned = re.compile("|".join(pattern.pattern for pattern, _ in banned), re.IGNORECASE)
    former = former_names(GLOSSARY.read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for file in sorted({path for pattern in (*PAGES, *SOURCES, *OTHERS) for path in root.glob(pattern)}):
        text, name = file.read_text(encoding="utf-8").partition(FORMER_NAMES)[0], str(file.relative_to(root))
        of_file = set(findings(text, 1, spelling if file.suffix == ".py" else banned))
        if file.suffix == ".py":
            suspect = [(line, part) for line, part in texts_of(text) if any_banned.search(part)]
            of_file |= {each for line, part in suspect for each in findings(part, line, banned)}
            if any(pattern.search(text) for pattern, _ in former):
                of_file |= {each for line, part in messages_of(text) for each in findings(part, line, former)}
        found[name] = [f"{name}:{line}: {word!r}; {remedy}" for line, word, remedy in sorted(of_file)]
    return {name: lines for name, lines in found.items() if lines}


def main() -> int:
    """Print the findings; return 1 if there are any."""
    found = check(ROOT, yaml.safe_load(VOCABULARY.read_text(encoding="utf-8")))
    print(*(line for lines in found.values() for line in lines), sep="\n") if found else print(
        "vocabulary: no banned word"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
