"""Help of every command: groups, first lines, options that are understood on their own."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tests.command_line import APP, invoke
from tidegate.cli import COMMAND_GROUPS

COMMANDS: dict[str, Any] = dict(typer.main.get_command(APP).commands)  # type: ignore[attr-defined]
LONGEST_FIRST_LINE = 58
VAGUE_BEGINNINGS = re.compile(r"(Of|Its|His|The same|Instead|For machines|May|What|Where|Which|Who|How|That|So) ")


def _parameters(command: str) -> Iterator[tuple[str, Any]]:
    """Yield the longest spelling of each parameter, and itself."""
    for parameter in COMMANDS[command].params:
        if parameter.name != "help":
            yield max(parameter.opts, key=len), parameter


def _is_multiple(parameter: Any) -> bool:
    return bool(getattr(parameter, "multiple", False) or parameter.nargs == -1)


def test_every_command_is_in_one_group() -> None:
    grouped = [name for names in COMMAND_GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_first_lines_are_short_sentences(name: str) -> None:
    first, *rest = COMMANDS[name].help.split("\n")
    assert len(first) <= LONGEST_FIRST_LINE
    assert re.fullmatch(r"[A-Z].*\.", first)
    assert not rest or not rest[0], "a blank line ends the first line"


def test_the_help_fits_80_columns_uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = invoke("--help").output.splitlines()
    assert max(map(len, lines)) <= 80
    for name, command in COMMANDS.items():
        first = command.help.split("\n")[0]
        assert any(re.fullmatch(rf" *{name} +{re.escape(first)}", line) for line in lines), name
    assert [line[:-1] for line in lines if line in {f"{group}:" for group in COMMAND_GROUPS}] == list(COMMAND_GROUPS)


def _examples(name: str) -> list[str]:
    """Return the examples as they are printed at 80 columns, their continuation lines joined as a shell does."""
    output = invoke(name, "--help").output
    described = output.split("\nOptions:\n")[0].replace(" \\\n", " ")
    return [line.strip() for line in described.splitlines() if re.match(r"  +(sudo )?tidegate \S+ .*\S", line)]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_can_be_pasted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a command whose options exist, though the terminal is narrow."""
    monkeypatch.setenv("COLUMNS", "80")
    written = re.findall(r"^\s*((?:sudo )?tidegate (?:.|\n(?!\s*\n))*)", COMMANDS[name].callback.__doc__, re.MULTILINE)
    examples = _examples(name)
    assert [" ".join(example.split()) for example in examples] == [" ".join(text.split()) for text in written]
    for example in examples:
        for part in example.removeprefix("sudo ").split(" && "):
            program, command, *arguments = shlex.split(part)
            assert program == "tidegate"
            found = COMMANDS[command]
            with found.make_context(command, [], resilient_parsing=True) as context:
                found.make_parser(context).parse_args(arguments)


def test_most_commands_have_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    without = {name for name in COMMANDS if not _examples(name)}
    assert without <= {"triton", "plugins", "new-policy"}


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)], ids=str)
def test_the_short_flag_shows_the_help(arguments: list[str]) -> None:
    short, long = (invoke(*arguments, flag) for flag in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.output == long.output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_an_option_stands_alone(command: str) -> None:
    for name, parameter in _parameters(command):
        text = parameter.help or ""
        assert re.match(r"[A-Z]|gRPC|ONNX", text), f"{name} begins with a capital letter"
        assert re.search(r"[.\]]$", text), f"{name} is a whole clause"
        assert not VAGUE_BEGINNINGS.match(text), f"{name} names the thing first"
        assert "several times" not in text, f"{name}: say Repeatable"
        if name.endswith("-ms"):
            assert re.search(r"\bms\b|millisecond", text), name
        elif name.endswith("-s"):
            assert re.search(r"\bSeconds\b|\bseconds\b", text), name


@pytest.mark.parametrize("command", COMMANDS)
def test_numbers_say_their_default(command: str) -> None:
    for name, parameter in _parameters(command):
        is_number = parameter.type_descriptor.annotation in {int, float, int | None, float | None}
        is_single = parameter.param_type_name == "option" and not _is_multiple(parameter)
        if is_number and is_single and not parameter.required:
            shows = parameter.show_default and parameter.default is not None
            assert shows or "[default: " in parameter.help or "with --" in parameter.help, name


@pytest.mark.parametrize("flag", ["--tls", "--tls-ca", "--tls-cert", "--tls-key", "--tls-server-name", "--backend"])
def test_a_flag_that_commands_share_means_the_same(flag: str) -> None:
    texts = {each.help for command in COMMANDS.values() for each in command.params if flag in each.opts}
    assert len(texts) == 1
