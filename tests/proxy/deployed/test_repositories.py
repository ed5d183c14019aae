"""Repositories of workers that a deployment did not begin with."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.proxy.actuation.deployment import layout, write_deployment
from tidegate.documents import Device, Layout
from tidegate_proxy.deployed.folder import DeploymentError
from tidegate_proxy.deployed.repositories import EMULATED_TIMES, Repositories


def config_in(repository: Path) -> model_config_pb2.ModelConfig:
    config = model_config_pb2.ModelConfig()
    text_format.Parse((repository / "m" / "config.pbtxt").read_text(), config)
    return config


def on_another(first: Layout, kind: str) -> Layout:
    """The first worker on another GPU, of another kind, on which every batch takes 9 ms."""
    worker = first.workers[0].model_copy(update={"device": Device("here", 9, kind), "kind": kind, "name": "a/b"})
    part = first.partitions[0]
    tables = {**part.latency_ms, kind: (9.0,) * len(part.latency_ms["any"])}
    return first.model_copy(
        update={"workers": (worker,), "partitions": (part.model_copy(update={"latency_ms": tables}),)}
    )


def test_a_model_is_linked_and_takes_the_batches_of_the_layout(tmp_path: Path) -> None:
    folder = write_deployment(tmp_path / "deployment", layout(0, batch=4))
    wanted = layout(1, batch=2)
    repository = Repositories(folder).write(7, wanted.workers[0], wanted)
    assert repository == folder / "run" / "workers" / "7-gpu1"
    assert config_in(repository).max_batch_size == 2
    before = folder / "workers" / "gpu0"
    assert config_in(before).max_batch_size == 4, "that of the worker that serves stays"
    assert (repository / "m/1/model.py").samefile(before / "m/1/model.py")


def test_an_emulated_gpu_of_another_kind_takes_the_time_of_the_layout(tmp_path: Path) -> None:
    first = layout(0)
    folder = write_deployment(tmp_path / "deployment", first)
    path = folder / "workers/gpu0/m/config.pbtxt"
    emulated = 'parameters { key: "%s" value: { string_value: "{}" } }\n'
    path.write_text(path.read_text() + emulated % EMULATED_TIMES + emulated % "neighbours")
    wanted = on_another(first, "slow")
    parameters = config_in(Repositories(folder).write(1, wanted.workers[0], wanted)).parameters
    assert parameters[EMULATED_TIMES].string_value == '{"1": 9.0, "2": 9.0, "3": 9.0, "4": 9.0}'
    assert "neighbours" not in parameters
    same = on_another(first, "any")
    assert (
        config_in(Repositories(folder).write(2, same.workers[0], same)).parameters[EMULATED_TIMES].string_value == "{}"
    )


def test_a_partition_that_the_folder_does_not_have_is_named(tmp_path: Path) -> None:
    folder = write_deployment(tmp_path / "deployment", layout(0))
    part = layout(1).partitions[0].model_copy(update={"blocks": (0, 3)})
    wanted = layout(1).model_copy(update={"partitions": (part,)})
    with pytest.raises(DeploymentError, match=r"worker 'gpu1' is to host partition 'm' \(blocks 0 to 3 of 'm'\)"):
        Repositories(folder).write(1, wanted.workers[0], wanted)


def test_what_a_deployment_that_was_killed_has_left_goes(tmp_path: Path) -> None:
    folder = write_deployment(tmp_path / "deployment", layout(0))
    left = folder / "run" / "workers" / "3-gpu9"
    left.mkdir(parents=True)
    Repositories(folder)
    assert not left.exists()
