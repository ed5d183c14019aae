"""The rules that hold themselves: what linters forbid is what the house forbids, and CI runs what a clone runs."""

import ast
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import grimp
import pytest
import yaml

ROOT = Path(__file__).parents[1]
BANNED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["flake8-tidy-imports"][
    "banned-api"
]
DRAWS = sorted(name for name in dir(random) if not name.startswith("_") and callable(getattr(random, name)))


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def test_the_seeded_generator_is_all_of_random_that_is_allowed() -> None:
    """A newer Python may have a function more."""
    assert [name for name in DRAWS if f"random.{name}" not in BANNED] == ["Random"]


SNIPPET = """\
import datetime
import random
import numpy as np
from datetime import date
from random import Random

random.Random(7).random()
Random(7).choice([1])
datetime.timedelta(1)
random.getrandbits(3)
random.randint(1, 2)
random.SystemRandom()
datetime.datetime.now()
datetime.datetime.now(datetime.UTC)
date.today()
np.random.default_rng()
import uuid
import secrets
import time
import asyncio
from random import gauss
from uuid import uuid4
from os import urandom
"""
FIRST_BANNED = 10
"""Lines of the snippet from here on are forbidden."""


@pytest.mark.parametrize(
    "folder",
    ["core/src/tidegate/engine", "plugins/symphony/src/tidegate_symphony", "plugins/template/src/tidegate_template"],
)
def test_core_and_plugins_draw_nothing_that_is_not_seeded_and_read_no_clock(folder: str) -> None:
    """Each line that does is refused, and no other one."""
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--output-format", "concise"]
    done = subprocess.run(
        [*command, "--stdin-filename", f"{folder}/drawn.py", "-"],
        input=SNIPPET,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    refused = {int(line) for line in re.findall(r"drawn\.py:(\d+):\d+: TID251", done.stdout)}
    assert refused == set(range(FIRST_BANNED, len(SNIPPET.splitlines()) + 1)), done.stdout + done.stderr


def test_ci_runs_what_a_clone_runs_with_each_python_and_nothing_that_moves() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12"]
    uses = [step["uses"] for step in job["steps"] if "uses" in step]
    assert uses
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", used) for used in uses)
    (run,) = (step for step in job["steps"] if "run" in step)
    assert run["run"] == ".ci/run"
    assert (ROOT / run["run"]).stat().st_mode & 0o111
    assert run["env"] == {"PYTHON": "python${{ matrix.python }}"}
    assert re.search(r"^PYTHON \?=", (ROOT / "Makefile").read_text(), re.MULTILINE)


LAYERS = {"tidegate_proxy", "base", "messages", "tritons", "scheduling", "service", "rollout", "servers", "app"}
ROOMS = sorted(
    init.parent
    for source in (*ROOT.glob("*/src"), *ROOT.glob("plugins/*/src"))
    for init in source.rglob("__init__.py")
    if "tidegate_proxy/" not in str(init.relative_to(ROOT)) or init.parent.name in LAYERS
)
IN_THE_FILE_OF_ITS_NAME = {"tidegate_baselines", "tidegate_loadtest/commands"}
"""Rooms whose map would only repeat what their folder says."""


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_the_map_of_a_room_names_every_file_in_it(room: Path) -> None:
    """Where its docstring begins: what is there, and what it is for."""
    if str(room).endswith(tuple(IN_THE_FILE_OF_ITS_NAME)):
        pytest.skip("each file is named after the one thing in it")
    words = set(re.findall(r"\w+", ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""))
    files = {path.stem for path in room.glob("*.py")} | {path.parent.name for path in room.glob("*/__init__.py")}
    assert sorted(files - words - {"__init__", "__main__", "plugin"}) == []


MEMBERS = tuple(path.name for path in ROOT.glob("*/src/tidegate*")) + tuple(
    path.name for path in ROOT.glob("plugins/*/src/tidegate*")
)


def test_tests_of_the_proxy_are_where_its_sources_are() -> None:
    """A folder of tests has the name of a package of the proxy, and each file of tests is in one."""
    tests, sources = ROOT / "tests/proxy", ROOT / "proxy/src/tidegate_proxy"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if folder == Path() or not (sources / folder).is_dir()] == []


def test_no_module_imports_itself_in_a_circle() -> None:
    """Modules of one package may know each other's types; packages may not (contracts of layers in pyproject.toml)."""
    members = sorted({*MEMBERS} - {"tidegate_template"})
    graph = grimp.build_graph(*members, include_external_packages=False, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        tuple(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


NOTED = {
    "PendingRequest": "arrival_ns batch_id due_ns ended_ns refusal request_id runs_apart span started_ns until_ns",
    # What scheduling and tracing note of a request, on the way of each.
    "Call": "owner",  # whose it is, as the gate says
    "Backend": "heard_ns",  # when it answered last
    "protobuf": """bool_param byte_size double_param execution_count id inference_count int64_param last_inference
        max_batch_size max_queue_delay_microseconds model_name model_version name string_param string_value
        uint64_param""",
    "ssl": "check_hostname sni_callback verify_mode",
    "uvicorn": "disconnected keep_alive transport waiting_for_100_continue",
    "Python": "stdout tempdir value",
}
"""What another module may set: data of classes whose every note would else be a call, and what others have made."""
NOTES = frozenset(" ".join(NOTED.values()).split())


def test_nothing_is_attached_to_an_object_from_outside() -> None:
    """A collaborator comes by a constructor or a method, where a reader finds it; records of data are written to."""
    trees = {path: _parsed(path) for path in (ROOT / "proxy/src").rglob("*.py")}
    records = frozenset[str]().union(*(_data(tree) for tree in trees.values()))
    attached = [
        f"{path.relative_to(ROOT)}:{line}: {target}"
        for path, tree in trees.items()
        for line, target, name in _set_from_outside(tree)
        if name not in records | NOTES
    ]
    assert attached == []


def _set_from_outside(tree: ast.Module) -> list[tuple[int, str, str]]:
    """Line, target and attribute of each assignment to an object that is not `self`, nor of a class of the module."""
    stores = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    outside = [node for node in stores if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))]
    own = {node.attr for node in stores if node not in outside} | {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return [(node.lineno, ast.unparse(node), node.attr) for node in outside if node.attr not in own]


def _data(tree: ast.Module) -> set[str]:
    """The fields of the records of a module that may be written to and are no functions."""
    return {
        field.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if "Callable" not in ast.unparse(field.annotation)
    }


def test_what_is_attached_from_outside_is_seen() -> None:
    tree = ast.parse("class A:\n    def f(self, b: B) -> None:\n        self.x = 1\n        b.x = b.on_change = 1")
    assert _set_from_outside(tree) == [(4, "b.on_change", "on_change")]
    record = "@dataclass\nclass A:\n    count: int\n    on_change: Callable[[], None]"
    assert _data(ast.parse(record)) == {"count"}


SHARED = {
    "DashboardSource",
    "HttpListener",
    "LinkEnd",
    "QueriedTriton",
    "RpcServer",
    "ShardRelay",
    "_Connection",
}
"""Protocols that two classes of ours or more have."""


def test_no_protocol_stands_for_one_class() -> None:
    """A reader who goes to a definition ends at a Protocol: that is worth it where there is more than one."""
    found = {
        node.name
        for path in (ROOT / "proxy/src").rglob("*.py")
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).split("[")[0] == "Protocol" for base in node.bases)
    }
    assert found == SHARED


NO_BEGINNING = re.compile(r"\s*(Of|Those|By|What|Who|Which|All of|Lives in|One \w+\.|As|Raises)( |$)|\s*One \w+\.")
FEWEST_WORDS_OF_A_CLASS = 5


def test_docstrings_begin_with_their_subjects() -> None:
    """What begins with "Of", "What" or "Which" says nothing to a reader who does not see the line above it."""
    fragments = []
    for source in (*ROOT.glob("*/src"), *ROOT.glob("plugins/*/src")):
        for path in source.rglob("*.py"):
            for line, text in _wanting_docstrings(path.read_text(encoding="utf-8")):
                fragments.append(f"{path.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}")
    assert fragments == []


def _wanting_docstrings(text: str) -> list[tuple[int, str]]:
    """Docstrings that begin without their subject, and those of public classes that have too few words."""
    wanting = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(ast.Constant(str() as said)) if NO_BEGINNING.match(said):
                wanting.append((node.lineno, said))
            case ast.ClassDef() if not node.name.startswith("_"):
                said = ast.get_docstring(node) or ""
                if said and len(said.split()) < FEWEST_WORDS_OF_A_CLASS:
                    wanting.append((node.lineno, said))
    return wanting


def test_docstrings_without_a_subject_are_seen() -> None:
    begun = [
        f'"""{text}"""' for text in ("What it says.", "Raises X if.", "One run.", "As it is.", "What-if analysis.")
    ]
    assert len(_wanting_docstrings("\n".join(begun))) == len(begun) - 1
    assert _wanting_docstrings('class A:\n    """A run."""')


MIN_ARGUMENTS_TO_DESCRIBE = 3
DESCRIBED = re.compile(r"((?:`[a-z_0-9]+`(?:, | and )?)+):")
UNIT = re.compile(r"_(ns|us|ms|s|rps|bytes|mib|gib|rows|percent|fraction|ids?)$")
"""Suffixes of names that say unit and meaning."""
TERMS = frozenset(
    (
        "details",
        "device_class",
        "folder",
        "message",
        "method",
        "model",
        "path",
        "progress",
        "rows",
        "seed",
        "title",
        "version",
    )
)
"""Names of arguments that mean the same everywhere, in the words of the glossary or of gRPC."""
GENERAL_TYPES = frozenset(
    (
        "Any",
        "Callable",
        "Collection",
        "Container",
        "Final",
        "Iterable",
        "Iterator",
        "Literal",
        "Mapping",
        "None",
        "Path",
        "Random",
        "Sequence",
        "Set",
    )
)
"""Types that say nothing about an argument, beside those in small letters."""


def test_public_functions_of_three_arguments_say_what_these_are() -> None:
    """An argument is described by the docstring (of a base class, too), by a type with a docstring, or by its unit."""
    functions, described = [], set[tuple[str, ...]]()
    for path, of_module in _public_functions():
        for where, node, is_derived in of_module:
            names, missing = _undescribed(node)
            if not missing:
                described.add((node.name, *names))
            functions.append((f"{path.relative_to(ROOT)}: {where}", (node.name, *names), missing, is_derived))
    assert [
        f"{where}: {', '.join(missing)}"
        for where, signature, missing, is_derived in functions
        if missing and not (is_derived and signature in described)
    ] == []


def test_docstrings_describe_arguments_that_exist() -> None:
    """`name`: in a docstring is an argument, so that one that is renamed is described by its new name."""
    unknown = []
    for path, of_module in _public_functions():
        for where, node, _ in of_module:
            text = ast.get_docstring(node) or ""
            described = {name for each in DESCRIBED.findall(text) for name in re.findall(r"`(\w+)`", each)}
            if strange := described.difference(each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)):
                unknown.append(f"{path.relative_to(ROOT)}: {where}: {', '.join(sorted(strange))}")
    assert unknown == []


def test_public_functions_say_what_they_raise() -> None:
    silent = [
        f"{path.relative_to(ROOT)}: {where}: {', '.join(sorted(raised))}"
        for path, of_module in _public_functions()
        for where, node, _ in of_module
        if (raised := _raised(node)) and "rais" not in (ast.get_docstring(node) or "").lower()
    ]
    assert silent == []


Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _public_functions() -> list[tuple[Path, list[tuple[str, Function, bool]]]]:
    return [
        (path, [*_functions_in(ast.parse(path.read_bytes()), "", is_derived=False)])
        for source in (*ROOT.glob("*/src"), *ROOT.glob("plugins/*/src"))
        for path in sorted(source.rglob("*.py"))
    ]


def _functions_in(
    owner: ast.Module | ast.ClassDef, prefix: str, *, is_derived: bool
) -> Iterator[tuple[str, Function, bool]]:
    """Public functions with a docstring, by name, and whether their class has a base. Commands have help instead."""
    for node in owner.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _functions_in(node, f"{prefix}{node.name}.", is_derived=bool(node.bases))
        elif (
            isinstance(node, Function)
            and (node.name == "__init__" or not node.name.startswith("_"))
            and ast.get_docstring(node)
            and "Annotated" not in ast.unparse(node.args)
        ):
            yield prefix + node.name, node, is_derived


def _undescribed(node: Function) -> tuple[list[str], list[str]]:
    """Names of the arguments, and of those that are not described."""
    taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    taken = [each for each in taken if each.arg not in ("self", "cls") and not each.arg.startswith("_")]
    words = " ".join((ast.get_docstring(node) or "").split()).lower()
    missing = [
        each.arg
        for each in taken
        if not (each.arg in TERMS or UNIT.search(each.arg) or _has_telling_type(each) or _names(words, each.arg))
    ]
    return [each.arg for each in taken], missing if len(taken) >= MIN_ARGUMENTS_TO_DESCRIBE else []


def _has_telling_type(argument: ast.arg) -> bool:
    written = ast.unparse(argument.annotation) if argument.annotation else ""
    words = re.findall(r"[A-Za-z_]\w*", written)
    return "Callable" not in words and any(word[0].isupper() and word not in GENERAL_TYPES for word in words)


def _names(words: str, argument: str) -> bool:
    """Whether a text has the name of an argument, or the words of it, in singular or plural."""
    name = re.sub("^(is|has|can)_", "", argument.lower())
    forms = {argument.lower(), name, name.rstrip("s"), f"{name}s", re.sub("y$", "ies", name), re.sub("ies$", "y", name)}
    return any(re.search(rf"(?<!\w){form.replace('_', '[ _-]')}(?!\w)", words) for form in forms)


def _raised(node: Function) -> set[str]:
    """Names of the exceptions that a function makes and raises itself."""
    todo: list[ast.AST] = [*node.body]
    found = set[str]()
    while todo:
        each = todo.pop()
        if isinstance(each, ast.Raise) and isinstance(each.exc, ast.Call):
            found.add(ast.unparse(each.exc.func).rpartition(".")[2])
        if not isinstance(each, Function | ast.ClassDef):
            todo += [child for child in ast.iter_child_nodes(each) if isinstance(child, ast.stmt | ast.excepthandler)]
    return found - {"AssertionError", "NotImplementedError", "Exit"}


def test_silent_docstrings_are_seen() -> None:
    (silent,) = _functions_in(
        ast.parse('def f(a: int, b_ns: int, c: Profile, d: Path):\n "Do so with d."\n if a:\n  raise ValueError("no")'),
        "",
        is_derived=False,
    )
    assert _undescribed(silent[1]) == (["a", "b_ns", "c", "d"], ["a"])
    assert _raised(silent[1]) == {"ValueError"}


NAMED_BY_OTHERS = {"TritonPythonModel"}
"""Class names that Triton's Python backend looks for."""


def test_no_two_public_classes_of_a_distribution_share_a_name() -> None:
    """A traceback or a search that names a class leads to one place."""
    for source in (*ROOT.glob("*/src"), *ROOT.glob("plugins/*/src")):
        places: dict[str, list[str]] = {}
        for path in sorted(source.rglob("*.py")):
            for node in _parsed(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(str(path.relative_to(source)))
        twice = {name: files for name, files in places.items() if len(files) > 1 and name not in NAMED_BY_OTHERS}
        assert twice == {}, source


BARE_WORDS: frozenset[str] = frozenset()
"""Public constants of one word that say all there is to say."""


def test_constants_say_quantity_and_unit() -> None:
    """`MIN_REQUESTS` is understood where it is used; `FEW` is not. Names of one letter are type variables."""
    bare = [
        f"{path.relative_to(ROOT)}: {target.id}"
        for source in (*ROOT.glob("*/src"), *ROOT.glob("plugins/*/src"))
        for path in sorted(source.rglob("*.py"))
        for node in _parsed(path).body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and re.fullmatch("[A-Z][A-Z0-9]+", target.id)
        if target.id not in BARE_WORDS
    ]
    assert bare == []


BRITISH = re.compile(
    "colour|neighbour|favour|behaviour|flavour|utilis|normalis|optimis|initialis|serialis|synchronis|minimis|maximis|recognis"
    "|analyse(d|r)?(_|$)|licence|(^|_)centre|modelling|levelled|labelled|judgement|artefact",
    re.IGNORECASE,
)  # fmt: skip
"""Stems of words that Triton, CUDA and Kubernetes spell in the American way. (gRPC has CANCELLED, as Python.)"""


def test_identifiers_are_spelled_in_the_american_way() -> None:
    """A reader searches for `utilization` and `neighbor`."""
    spelled = set[str]()
    for path in (
        path
        for folder in ("core", "proxy", "plugins", "loadtest", "repo_generator")
        for path in (ROOT / folder).rglob("src/**/*.py")
    ):
        for node in ast.walk(_parsed(path)):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                    found = name
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found = name
                case _:
                    continue
            if BRITISH.search(found):
                spelled.add(f"{path.relative_to(ROOT)}: {found}")
    assert sorted(spelled) == []


def test_every_package_says_that_it_is_typed() -> None:
    members = {manifest.parent for manifest in ROOT.glob("*/pyproject.toml")}
    members |= {manifest.parent for manifest in ROOT.glob("plugins/*/pyproject.toml")}
    packages = [package for member in members for package in (member / "src").glob("tidegate*")]
    assert len(packages) > 8
    untyped = sorted(package.name for package in packages if not (package / "py.typed").exists())
    assert untyped == [], "no py.typed: whoever imports these gets no types"


VALIDATES = ("model_validate", "model_validate_json", "validate_python", "validate_json")
AMONG_OURSELVES = {
    "background.py",  # a process of ours reads what another one wrote
    "kept.py",  # the same
    "up.py",
}


def test_nobody_is_told_anything_in_pydantics_words() -> None:
    """Whatever people write is validated where a ValidationError is caught, and is told by `field_errors`."""
    wrong = []
    for source in (*ROOT.glob("*/src"), *ROOT.glob("plugins/*/src")):
        for path in source.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if not any(word in text for word in ("ValidationError", *VALIDATES)):
                continue
            tree = ast.parse(text)
            handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and _catches(node)]
            told = [f"{path.name}:{handler.lineno} repeats what it says" for handler in handlers if _repeats(handler)]
            caught = {id(each) for node in ast.walk(tree) if _tries(node) for each in ast.walk(node)}
            calls = [node for node in ast.walk(tree) if _validates(node) and id(node) not in caught]
            bare = [f"{path.name}:{call.lineno} lets it through" for call in calls if path.name not in AMONG_OURSELVES]
            wrong += told + bare
    assert wrong == []


def _catches(handler: ast.ExceptHandler) -> bool:
    names = [node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)] if handler.type else []
    return "ValidationError" in names


def _tries(node: ast.AST) -> bool:
    return isinstance(node, ast.Try) and any(_catches(handler) for handler in node.handlers)


def _validates(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VALIDATES


def _repeats(handler: ast.ExceptHandler) -> bool:
    """Whether the error itself becomes text: in an f-string, or by `str`."""
    texts = [node.value for node in ast.walk(handler) if isinstance(node, ast.FormattedValue)]
    for node in ast.walk(handler):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
            texts += node.args
    return any(isinstance(text, ast.Name) and text.id == handler.name for text in texts)


def test_the_rule_about_pydantics_words_can_be_broken() -> None:
    broken = ast.parse('try:\n    pass\nexcept (OSError, ValidationError) as error:\n    print(f"no: {error}")')
    (handler,) = (node for node in ast.walk(broken) if isinstance(node, ast.ExceptHandler))
    assert _catches(handler)
    assert _repeats(handler)
    kept = ast.parse(
        "try:\n    M.model_validate(x)\nexcept ValidationError as error:\n    print(field_errors(error, M))"
    )
    (handler,) = (node for node in ast.walk(kept) if isinstance(node, ast.ExceptHandler))
    assert not _repeats(handler)
    assert [_validates(node) for node in ast.walk(kept)].count(True) == 1


UNSEEDED = re.compile(
    r"os\.urandom\(|SystemRandom|\bsecrets\.\w+\(|\brandom\.seed\(\)|\bRandom\(\)|default_rng\(\)|RandomState\(\)|uuid[14]\(\)"
)
"""What draws from the operating system, or from the clock."""


def test_tests_draw_the_same_every_time() -> None:
    """Exploration lives in `make explore` and `make fuzz`: `make test` must not depend on luck."""
    here = Path(__file__)
    drawn = [
        f"{path.relative_to(here.parents[1])}:{number}: {line.strip()}"
        for path in sorted(here.parent.rglob("*.py"))
        if path != here
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNSEEDED.search(line)
    ]
    assert drawn == []


def test_unseeded_draws_are_seen() -> None:
    for line in ("seed = os.urandom(3)", "rng = np.random.default_rng()", "Random()", "token = secrets.token_hex(8)"):
        assert UNSEEDED.search(line), line
    for line in ("rng = np.random.default_rng(7)", "Random(seed)"):
        assert not UNSEEDED.search(line), line


LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def _unsteady_logs(source: str) -> list[int]:
    """Lines of log calls whose message varies: it has arguments, is no literal, or is nothing but a placeholder."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id in {"log", "logger"}):
            continue
        message, *others = node.args[node.func.attr == "log" :]
        text = message.value if isinstance(message, ast.Constant) else None
        if others or not isinstance(text, str) or "%" in text or not re.match("[A-Za-z]", text):
            found.append(node.lineno)
    return found


def test_messages_of_logs_are_constant_and_what_varies_is_a_field() -> None:
    """Locust prints messages without fields, so that its users carry the cause in the message."""
    sources = [path for path in ROOT.glob("*/src/**/*.py") if path.parent.name != "locust"]
    found = {str(path.relative_to(ROOT)): _unsteady_logs(path.read_text(encoding="utf-8")) for path in sources}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_message_that_varies_is_seen() -> None:
    source = 'log.info("lost", extra={})\nlog.info("%s")\nlog.info("lost %s", it)\nlog.info(words)\nlog.info(f"{it}")\n'
    assert _unsteady_logs(source) == [2, 3, 4, 5]
