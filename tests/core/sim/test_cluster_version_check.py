"""What is said where the workers of a cluster have not what this machine has."""

import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from tidegate.host import UnknownPlugin
from tidegate.parallel_backend import ParallelBackendError
from tidegate.sim.ray_cluster import check_versions, what_is_installed

HERE = what_is_installed()()
WORKER = "10.0.0.7:4001"


def test_the_same_everywhere_is_agreed() -> None:
    with check_versions("Ray", {WORKER: HERE}).explained():
        pass


@pytest.mark.parametrize("name", ["Python", "tidegate", "numpy", "tidegate-baselines"])
def test_another_version_is_refused_with_what_to_install(name: str) -> None:
    with pytest.raises(ParallelBackendError) as error:
        check_versions("Ray", {WORKER: HERE | {name: "0.0"}})
    message = str(error.value)
    assert f"worker {WORKER} has {name} 0.0, and this machine {HERE[name]}" in message
    assert message.endswith(f"{'run Python ' if name == 'Python' else f'pip install {name}=='}{HERE[name]} there")


def test_a_worker_without_tidegate_is_refused_with_what_to_install() -> None:
    there = {name: version for name, version in HERE.items() if name != "tidegate"}
    with pytest.raises(ParallelBackendError, match=r"10.0.0.7:4001 has no tidegate: pip install .tidegate\[sim\]=="):
        check_versions("Ray", {WORKER: there})


def test_a_plugin_that_a_worker_lacks_is_named_once_a_run_misses_it() -> None:
    there = {name: version for name, version in HERE.items() if name != "tidegate-baselines"}
    agreement = check_versions("Ray", {WORKER: there})
    remedy = f"lacks plugins: pip install tidegate-baselines=={HERE['tidegate-baselines']}"
    with pytest.raises(ParallelBackendError, match=remedy), agreement.explained():
        raise UnknownPlugin("no policy fifs")


def test_an_unknown_plugin_is_just_that_where_workers_have_all_there_is() -> None:
    with pytest.raises(UnknownPlugin), check_versions("Ray", {WORKER: HERE}).explained():
        raise UnknownPlugin("no policy ffis")


def test_the_question_travels_to_where_tidegate_is_missing(tmp_path: Path) -> None:
    question = tmp_path / "question"
    question.write_bytes(cloudpickle.dumps(what_is_installed()))
    ask = f"""
import pickle, sys
sys.modules.update(dict.fromkeys(("tidegate", "tidegate.sim", "tidegate.sim.ray_cluster")))
print(pickle.loads(open({str(question)!r}, "rb").read())()["Python"])
"""
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == HERE["Python"]
