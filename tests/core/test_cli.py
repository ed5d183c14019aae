"""The `tidegate` command itself; subcommands of other distributions are tested with these."""

import json
import os
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests.command_line import invoke
from tidegate.api import CommandSpec, hookimpl
from tidegate.cli import build_app, main
from tidegate.host import PluginConflict, Plugins

run = CliRunner().invoke


def test_plugins_as_json_lists_every_policy_with_its_options() -> None:
    plugins = Plugins.installed()
    result = run(build_app(plugins), ["plugins", "--json"])
    assert result.exit_code == 0
    listed = json.loads(result.stdout)
    policies = {offer["name"]: offer for offer in listed["plugins"] if offer["kind"] == "policy"}
    assert set(policies) == set(plugins.policies)
    assert policies["symphony"]["source"] == "tidegate-symphony"
    options = {option["name"]: option for option in policies["symphony"]["options"]}
    assert options["deadline_margin_ms"]["type"] == "number, at least 0"
    assert options["deadline_margin_ms"]["default"] == "0.0"
    assert {offer["name"] for offer in listed["plugins"] if offer["kind"] == "planner"} == set(plugins.planners)
    assert listed["broken"] == plugins.broken


def test_json_means_the_same_in_every_command() -> None:
    """`--json` prints JSON; a file is written by `--output` (`-o`)."""
    commands: dict[str, Any] = vars(get_command(build_app(Plugins.installed())))["commands"]
    options = [(name, each) for name, command in commands.items() for each in command.params]
    assert {name for name, each in options if "--json" in each.opts and not each.is_flag} == set()
    assert {name for name, each in options if "--output" in each.opts and "-o" not in each.opts} == set()


def test_the_version_is_that_of_all_distributions() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"tidegate {metadata.version('tidegate')}\n")
    members = [each for each in metadata.distributions() if (each.name or "").startswith("tidegate-")]
    assert {each.version for each in members} == {metadata.version("tidegate")}


def test_plugins_for_people_names_policies_and_what_is_broken() -> None:
    plugins = Plugins.installed()
    plugins.broken["tidegate-wonder"] = "KeyError: '[/red]'"  # no markup, though it looks like it
    result = run(build_app(plugins), ["plugins"])
    assert result.exit_code == 0
    assert "symphony" in result.stdout
    assert "tidegate-wonder could not be imported: KeyError: '[/red]'" in " ".join(result.stdout.split())


def test_one_plugin_is_shown_with_type_default_and_text_of_each_option() -> None:
    shown = invoke("plugins", "symphony").stdout
    assert shown.startswith("policy symphony, from tidegate-symphony: Deferred batching")
    (line,) = (line for line in shown.splitlines() if "max_miss_rate" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "max_miss_rate", "number, at least 0, below 1", "0.01", "Fraction of lost requests that needs no more workers"
    ]  # fmt: skip


def test_two_of_one_name_are_both_shown_and_none_is_an_error() -> None:
    app = build_app(Plugins.installed())
    both = run(app, ["plugins", "ppipe"]).stdout
    assert "policy ppipe, from tidegate-ppipe" in both
    assert "tidegate plan ppipe --help" in both
    unknown = run(app, ["plugins", "simphony"])
    assert unknown.exit_code == 2
    assert "nothing named 'simphony' is installed" in unknown.stderr


def test_a_plugins_command_becomes_a_subcommand() -> None:
    def greet(name: str, *, loud: bool = False) -> None:
        """Greet somebody."""
        print(f"Hello {name}{'!' if loud else '.'}")  # noqa: T201

    class Plugin:
        @hookimpl
        def tidegate_commands(self) -> list[CommandSpec]:
            return [CommandSpec("greet", greet)]

    plugins = Plugins()
    plugins.register(Plugin(), "greeter")
    app = build_app(plugins)
    assert run(app, ["greet", "Triton", "--loud"]).stdout == "Hello Triton!\n"
    assert "Greet somebody." in run(app, ["--help"]).stdout
    assert run(app, ["greet"]).exit_code == 2


def test_ctrl_c_while_plugins_are_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidegate.cli.Plugins.installed", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


def test_two_plugins_of_one_name_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "'dist-one' and 'dist-two' both offer a policy named 'a': uninstall one of them"

    def conflict() -> None:
        raise PluginConflict(why)

    monkeypatch.setattr("tidegate.cli.Plugins.installed", conflict)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr() == ("", f"error: {why}\n")


def test_a_file_that_cannot_be_written_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    refused = invoke("plan", "ppipe", __file__, "--layout", "layout.json")
    assert refused.exit_code == 2
    assert "layout.json cannot be written; name a file in a folder of yours" in " ".join(refused.output.split())
    printed = invoke("init", "--triton", "127.0.0.1:9", "-o", "-")
    assert "cannot be written" not in printed.output, "- is standard output"


def test_who_has_read_enough_is_not_told_of_it() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "check", "--schema"]
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
