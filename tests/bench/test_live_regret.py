"""Random deployments of the live regret benchmark, and what is said of their figures."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import live_regret
from bench.live_regret import AUTO, BLOCKS, PLAIN, TIDEGATE, TUNED, draw_deployment, gain, is_below


def row(number: int, on_time: dict[str, list[int]]) -> dict[str, Any]:
    """A line of results with 100 requests in each block."""
    arms = {
        label: {
            "attainment": sum(own) / 1000,
            "requests": [100] * BLOCKS,
            "on_time": own,
            "p50_ms": 5,
            "not_measured": "",
        }
        for label, own in on_time.items()
    }
    facts: dict[str, Any] = draw_deployment(34, number).__dict__
    return {"seed": 34, "number": number, "run": 1, "deployment": facts, "arms": arms}


WORSE = row(3, {PLAIN: [90] * BLOCKS, TUNED: [90] * BLOCKS, TIDEGATE: [80, 81] * 5, AUTO: [89, 91] * 5})
CHANCE = row(4, {PLAIN: [90] * BLOCKS, TUNED: [95] * BLOCKS, TIDEGATE: [60, 100] * 5, AUTO: [95] * BLOCKS})


def test_deployments_are_what_two_cores_emulate() -> None:
    for number in range(60):
        drawn = draw_deployment(34, number)
        assert drawn == draw_deployment(34, number)
        assert 0 < drawn.rate_rps <= live_regret.MAX_RATE_RPS + 1e-9
        for model in drawn.models:
            assert model["slo_ms"] > 2 * (model["profile"]["alpha_ms"] + model["profile"]["beta_ms"])
        assert drawn.scenario(30, 12).duration_s == 42


def test_a_loss_beyond_chance_is_named() -> None:
    assert is_below(gain([WORSE], TIDEGATE, PLAIN)) and not is_below(gain([WORSE], AUTO, PLAIN))
    assert gain([CHANCE], TIDEGATE, PLAIN).mean == pytest.approx(-10)
    assert not is_below(gain([CHANCE], TIDEGATE, PLAIN)), "blocks differ by more"
    out = io.StringIO()
    live_regret.show(Console(file=out, width=250), [WORSE, CHANCE])
    assert "Tidegate over Triton: mean -9.8" in out.getvalue()
    assert "beyond chance: 1 of 2 34/3" in out.getvalue()


def test_it_measures_only_what_the_file_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, asked = tmp_path / "rows.jsonl", []

    def measure(seed: int, number: int, run: int, senders: object) -> dict[str, Any]:
        asked.append(number)
        if number == 5:
            raise ValueError("Triton did not start")
        return {**CHANCE, "number": number}

    monkeypatch.setattr(live_regret, "measure", measure)
    file.write_text(json.dumps(WORSE) + "\n")
    for _ in range(2):
        live_regret.main(["-o", str(file), "--only", "3", "4", "5"])
    assert asked == [4, 5, 5]
    assert [json.loads(line)["number"] for line in file.read_text().splitlines()] == [3, 4]
