"""Accounts: worker time divided among tenants by rows, what it costs, and the report of a day."""

import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from tidegate.api import Batch, Request, Stage, Worker
from tidegate.observation import StartStage
from tidegate_proxy.commands.accounts import accounts
from tidegate_proxy.observability.accounts import TenantAccounts, costs_of


def test_a_batch_is_divided_by_rows_and_priced_by_device_class() -> None:
    books = TenantAccounts([Worker(0, "w", ("m",), device_class="A100")])
    requests = [Request(0, "m", 3, 0, tenant="shop"), Request(1, "m", 1, 0, tenant="search")]
    stages = (Stage(0, "m", 0, 8), Stage(0, "m", 8, 8))
    batch = Batch(0, "m", (0, 1), stages)
    books.joined(0, requests)
    for stage in (0, 1):
        books.ran(StartStage(batch, stage, 4), 1_800_000_000_000)
    assert books.gpu_ns == {("m", "shop", "A100"): 2_700_000_000_000, ("m", "search", "A100"): 900_000_000_000}
    assert costs_of(books.gpu_ns, {"A100": 4.0, "T4": 1.0}) == {("m", "shop"): 3.0, ("m", "search"): 1.0}
    books.joined(1, [Request(2, "m", 1, 0)])
    books.ran(StartStage(Batch(1, "m", (2,), stages[:1]), 0, 1), 5)
    assert books.gpu_ns["m", "", "A100"] == 5


def test_a_report_of_two_pages_survives_a_restart(tmp_path: Path) -> None:
    pages = []
    for number, (shop, search, rejected) in enumerate([(3600, 7200, 5), (9000, 1800, 9)]):
        pages.append(tmp_path / f"{number}.prom")
        pages[-1].write_text(
            "# TYPE tidegate_gpu_seconds counter\n"
            f'tidegate_gpu_seconds_total{{model="m",tenant="shop",device_class="A100"}} {shop}\n'
            f'tidegate_gpu_seconds_total{{model="m",tenant="search",device_class="A100"}} {search}\n'
            "# TYPE tidegate_gpu_cost counter\n"
            f'tidegate_gpu_cost_total{{model="m",tenant="shop"}} {shop / 1800}\n'
            "# TYPE tidegate_rate_limit_rejections counter\n"
            f'tidegate_rate_limit_rejections_total{{tenant="shop"}} {rejected}\n'
        )
    app = Typer()
    app.command()(accounts)
    done = CliRunner().invoke(app, [*map(str, pages), "--json"])
    rows = json.loads(done.stdout)
    assert [(row["tenant"], row["gpu_s"], row["cost"], row["rejected"]) for row in rows] == [
        ("shop", 5400.0, pytest.approx(3.0), None),
        ("search", 1800.0, None, None),
        ("shop", 0.0, None, 4.0),
    ]
    assert "1.500" in CliRunner().invoke(app, [*map(str, pages)]).stdout
    pages[0].write_text("nothing 1\n")
    failed = CliRunner().invoke(app, [*map(str, pages)])
    assert failed.exit_code == 1
    assert "it has no tidegate_gpu_seconds_total; give a page" in failed.stderr
