"""Size metrics of the sources: lines of files, classes and functions, exported names, import cycles.

`python -m bench.code_metrics [NAME=]CHECKOUT ...` prints a Markdown table with a column for each checkout of this
repository. The sources are parsed, not run.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

ROOMS = ("tidegate.api", "tidegate.toolkit", "tidegate.schemas")
"""Packages that plugins and other distributions import."""
TUTORIAL = "plugins/template/src/tidegate_template/policy.py"


@dataclass(frozen=True)
class Sized:
    """Name and number of lines of a file, class or function."""

    lines: int
    name: str

    def __str__(self) -> str:
        return f"{self.lines} ({self.name})"


@dataclass
class House:
    """Metrics of the sources of one checkout."""

    files: list[Sized] = field(default_factory=list)
    classes: list[Sized] = field(default_factory=list)
    functions: list[Sized] = field(default_factory=list)
    exported: dict[str, int] = field(default_factory=dict)
    """Number of names in `__all__`, by package."""
    imports: dict[str, set[str]] = field(default_factory=dict)
    """Names of Tidegate's modules that a module imports anywhere, by module name."""
    at_start: dict[str, set[str]] = field(default_factory=dict)
    """The part of `imports` that happens when the module itself is imported."""
    learned: int = 0
    """Number of Tidegate's names that the policy template imports."""
    test_lines: int = 0

    @property
    def lines(self) -> int:
        """Lines of code, with blank lines, comments and docstrings."""
        return sum(file.lines for file in self.files)


def survey(checkout: Path) -> House:
    """Return the metrics of a checkout. Raises FileNotFoundError if the folder is not a checkout."""
    if not (checkout / "core/src").is_dir():
        raise FileNotFoundError(f"{checkout}: no checkout of Tidegate, there is no core/src")
    house = House()
    trees = {module: (path, ast.parse(path.read_bytes())) for module, path in _modules(checkout)}
    for module, (path, tree) in trees.items():
        house.files.append(Sized(len(path.read_bytes().splitlines()), str(path.relative_to(checkout))))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                house.classes.append(Sized(_length(node), f"{module}.{node.name}"))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                house.functions.append(Sized(_length(node), f"{module}.{node.name}"))
        house.imports[module] = set(_imported(ast.walk(tree), trees.keys()))
        house.at_start[module] = set(_imported(_run_at_import(tree.body), trees.keys()))
        if module in ROOMS:
            house.exported[module] = len(_exported(tree))
    template = ast.parse((checkout / TUTORIAL).read_bytes())
    house.learned = sum(
        len(node.names)
        for node in ast.walk(template)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidegate.")
    )
    tests = [*(checkout / "tests").rglob("*.py"), *(checkout / "plugins").glob("*/tests/**/*.py")]
    house.test_lines = sum(len(path.read_bytes().splitlines()) for path in tests)
    return house


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return import cycles: groups of modules that reach each other along imports.

    `imports`: imported modules by module.
    """
    reached: dict[str, set[str]] = {}
    for start in imports:
        seen: set[str] = set()
        to_see = list(imports[start])
        while to_see:
            module = to_see.pop()
            if module not in seen:
                seen.add(module)
                to_see += imports.get(module, ())
        reached[start] = seen
    groups = {
        tuple(sorted(other for other in seen if module in reached.get(other, ())))
        for module, seen in reached.items()
        if module in seen
    }
    return [list(group) for group in sorted(groups)]


def table(houses: Mapping[str, House]) -> str:
    """Return the metrics as a Markdown table with a column for each checkout."""
    rows: list[tuple[str, list[object]]] = [("", [*houses]), ("---", ["---:"] * len(houses))]
    each = list(houses.values())

    def row(name: str, values: Iterable[object]) -> None:
        rows.append((name, [f"{value:,}" if isinstance(value, int) else value for value in values]))

    row("files of code", [len(house.files) for house in each])
    row("lines of code", [house.lines for house in each])
    for room in ROOMS:
        row(f"public names of `{room}`", [house.exported.get(room, "-") for house in each])
    row("of them in the template's policy", [house.learned for house in each])
    row("longest file, lines", [max(house.files, key=_lines) for house in each])
    row("files of more than 400 lines", [sum(file.lines > 400 for file in house.files) for house in each])
    row("longest class, lines", [max(house.classes, key=_lines) for house in each])
    row("longest function, lines", [max(house.functions, key=_lines) for house in each])
    row("mean function, lines", [f"{mean(map(_lines, house.functions)):.1f}" for house in each])
    row("circles of imports when modules are loaded", [len(circles(house.at_start)) for house in each])
    row("the same with imports for types, or in functions", [len(circles(house.imports)) for house in each])
    row("lines of tests per line of code", [f"{house.test_lines / house.lines:.2f}" for house in each])
    return "\n".join(f"| {name} | {' | '.join(map(str, values))} |" for name, values in rows)


def _modules(checkout: Path) -> Iterator[tuple[str, Path]]:
    """Every module of the distributions, with its file."""
    for source in sorted([*checkout.glob("*/src"), *checkout.glob("plugins/*/src")]):
        for path in sorted(source.rglob("*.py")):
            steps = path.relative_to(source).with_suffix("").parts
            yield ".".join(steps[:-1] if steps[-1] == "__init__" else steps), path


def _imported(nodes: Iterable[ast.AST], known: Iterable[str]) -> Iterator[str]:
    """The modules of ours that these nodes import."""
    known = set(known)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                if inner in known:
                    yield inner
                elif node.module in known:
                    yield node.module


def _run_at_import(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """What runs when a module is loaded: nothing within functions, nothing that is for type checkers."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from _run_at_import([*node.body, *node.orelse])
        elif isinstance(node, ast.ClassDef | ast.With):
            yield from _run_at_import(node.body)
        elif isinstance(node, ast.Try):
            yield from _run_at_import([*node.body, *node.orelse, *node.finalbody])
        else:
            yield node


def _exported(tree: ast.Module) -> list[str]:
    """The names in `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _length(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _lines(sized: Sized) -> int:
    return sized.lines


def main(checkouts: Sequence[str]) -> None:
    """Print the table, and the import cycles if there are any."""
    houses = {}
    for given in checkouts or ["."]:
        name, _, checkout = given.rpartition("=")
        houses[name or Path(checkout).resolve().name] = survey(Path(checkout))
    print(table(houses))
    for name, house in houses.items():
        for circle in circles(house.at_start):
            print(f"\n{name}: imported in a circle: {', '.join(circle)}")


if __name__ == "__main__":
    main(sys.argv[1:])
