"""Files of measured runs: the ways in which they may be written, and what is wrong with those that are not."""

from pathlib import Path

import pytest

from tidegate.schemas import Tenant
from tidegate_loadtest.interference.runs import CoRun, RunsError, SoloRun, read_co_runs, read_compute, read_solo


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.csv"


def test_solo_runs_say_what_was_measured_of_them(path: Path) -> None:
    path.write_text(
        "gpu,model,batch,share_pct,latency_ms,l2_util_pct,dram_util_pct,gpu_latency_ms\n"
        "V100,alexnet,8,40,3.2,10.1,11.4,2.75\nV100,alexnet,1,100,0.8,,,\n"
    )
    assert read_solo(path, "V100") == [
        SoloRun("alexnet", 8, 40, 3.2, 2.75, 10.1, 11.4),
        SoloRun("alexnet", 1, 100, 0.8, None, None, None),
    ]


PAIR = CoRun((Tenant("a", 2, 20), Tenant("b", 4, 80)), (2.5, 3.5))


def test_co_runs_are_pairs_in_a_line_or_lines_of_one_run(path: Path) -> None:
    path.write_text(
        "model1,model2,batch1,batch2,share1_pct,share2_pct,latency1_ms,latency2_ms\n"
        "a,b,2,4,20,80,2.5,3.5\na,b,2,4,20,80,2.5,3.5\n"
    )
    assert read_co_runs(path, "V100") == [PAIR, PAIR]
    path.write_text(
        "run,model,batch,share_pct,latency_ms\nx,a,2,20,2.5\ny,c,1,50,1\nx,b,4,80,3.5\ny,c,1,50,2\ny,a,1,9,3"
    )
    three = CoRun((Tenant("c", 1, 50), Tenant("c", 1, 50), Tenant("a", 1, 9)), (1.0, 2.0, 3.0))
    assert read_co_runs(path, "V100") == [PAIR, three]


def test_what_computing_took_is_told_by_run(path: Path) -> None:
    path.write_text("model,batch,share_pct,gpu_latency_ms,power_w\na,16,50,3.6,81\n")
    assert read_compute(path, "V100") == {("a", 16, 50.0): 3.6}


HEAD = "model,batch,share_pct,latency_ms"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"{HEAD}\na,1,50,-2\n", ":2: latency_ms is '-2': it must be milliseconds, more than none"),
        (f"{HEAD}\na,1,50,2\na,1,50,x\n", ":3: latency_ms is 'x': it must be a number"),
        (f"{HEAD}\na,1,50,inf\n", "latency_ms is 'inf'"),
        (f"{HEAD}\na,1.5,50,2\n", "batch is '1.5': it must be a whole number of rows"),
        (f"{HEAD}\na,1,0,2\n", "share_pct is '0': it must be percent of the GPU"),
        (f"{HEAD}\n,1,50,2\n", "model is '': it must be given"),
        (f"{HEAD},l2_util_pct\na,1,50,2,-1\n", "l2_util_pct is '-1': it must be 0 or more"),
        (f"{HEAD},gpu_latency_ms\na,1,50,2,3\n", "gpu_latency_ms is '3': it must be more than nothing, and no more"),
        (f"gpu,{HEAD}\nA100,a,1,50,2\n", ":2: gpu is 'A100': it must be 'V100', as --gpu says"),
        ("model,batch\na,1\n", "its columns are model,batch; it needs model,batch,share_pct,latency_ms"),
        (f"{HEAD}\n", "it has a header and nothing else"),
        ("", "its columns are none"),
    ],
)
def test_what_is_wrong_with_a_solo_run_is_named(path: Path, text: str, what: str) -> None:
    path.write_text(text)
    with pytest.raises(RunsError) as refused:
        read_solo(path, "V100")
    assert str(refused.value).startswith(str(path))
    assert what in str(refused.value)


def test_a_run_beside_nobody_is_no_co_run(path: Path) -> None:
    path.write_text(f"run,{HEAD}\n1,a,1,50,2\n1,b,1,50,2\n2,a,1,50,2\n")
    with pytest.raises(RunsError, match="nothing ran beside the only line of run '2'"):
        read_co_runs(path, "V100")
    with pytest.raises(RunsError, match="No such file"):
        read_co_runs(path.with_name("none.csv"), "V100")
