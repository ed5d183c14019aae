"""`tidegate new-policy`: what it writes is installed, listed, tested and simulated as its last lines say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import invoke

ROOT = Path(__file__).parents[3]
SCENARIO = """
duration_s: 2
workers: [{count: 2}]
models: [{name: resnet, slo_ms: 120, profile: {alpha_ms: 4, beta_ms: 8, max_batch: 8}}]
arrivals: {process: poisson, rate_rps: 150}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _run(*arguments: str) -> tuple[int, str]:
    result = invoke("new-policy", *arguments)
    return result.exit_code, result.output


def test_it_says_what_it_wrote_and_what_comes_next() -> None:
    code, output = _run("high-water")
    assert code == 0
    first, *rest = output.splitlines()
    assert first == (
        "Wrote tidegate-high-water: the policy is in tidegate-high-water/src/tidegate_high_water/policy.py. Next:"
    )
    assert Path("tidegate-high-water/src/tidegate_high_water/policy.py").exists()
    assert "  pytest tidegate-high-water" in rest


def test_words_become_names_of_modules_and_classes() -> None:
    _run("high-water", "--output", "elsewhere")
    plugin = Path("elsewhere/src/tidegate_high_water/plugin.py").read_text(encoding="utf-8")
    assert "from tidegate_high_water.policy import HighWater" in plugin
    assert 'PolicySpec("high-water"' in plugin
    assert "Make it yours" not in Path("elsewhere/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["High", "1st", "high_water", "high-", "../x", ""])
def test_what_is_no_name_is_refused(name: str) -> None:
    code, output = _run(name)
    assert code == 1
    assert output.startswith(f"error: {name!r} is no name for a policy: small letters")
    assert list(Path().iterdir()) == []


def test_a_name_that_is_taken_is_refused() -> None:
    code, output = _run("symphony")
    assert code == 1
    assert output.startswith("error: a policy named 'symphony' is installed already")


def test_a_folder_that_exists_is_left_as_it_is() -> None:
    Path("tidegate-high-water").mkdir()
    assert _run("high-water") == (1, "error: tidegate-high-water exists already: name another folder with --output\n")
    assert list(Path("tidegate-high-water").iterdir()) == []


@pytest.mark.slow
def test_it_installs_beside_tidegate_is_listed_tested_and_simulated(tmp_path: Path) -> None:
    """In an environment of its own, which sees what this one has."""
    _run("high-water")
    own = tmp_path / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True, timeout=120)
    python = own / "bin" / "python"
    site = next((own / "lib").glob("python3*")) / "site-packages"
    these = [path for path in sys.path if path.endswith("site-packages")]
    # `addsitedir`, as a plain path would leave out what is installed as editable.
    (site / "these.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in these))

    def do(*command: str | Path) -> str:
        done = subprocess.run(
            [str(word) for word in command], env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    uv = Path(sys.executable).parent / "uv"
    do(uv, "pip", "install", "--quiet", "--no-deps", "-c", ROOT / "constraints.txt", "--build-constraints",
       ROOT / "constraints.txt", "--python", python, "-e", "tidegate-high-water")  # fmt: skip
    tidegate = (python, "-c", "from tidegate.cli import main; main()")
    listed = json.loads(do(*tidegate, "plugins", "high-water", "--json"))
    assert [offer["source"] for offer in listed["plugins"]] == ["tidegate-high-water"]
    tested = do(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "tidegate-high-water",
                "tidegate-high-water")  # fmt: skip
    assert " passed" in tested
    Path("scenario.yaml").write_text(SCENARIO)
    do(*tidegate, "simulate", "scenario.yaml", "--policy", "high-water", "-o", "results.json")
    rows = json.loads(Path("results.json").read_text())["rows"]
    assert {row["policy"] for row in rows} == {"high-water"}
