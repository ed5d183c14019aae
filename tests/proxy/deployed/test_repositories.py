"""Repositories of workers that a deployment did not begin with."""

import json
from pathlib import Path

import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.proxy.app.actuation.deployment import layout, write_deployment
from tests.proxy.app.actuation.split import of_blocks, write_blocks
from tidegate.schemas import (
    Device,
    InterferenceModel,
    Layout,
    LayoutNetwork,
    NonDecreasingLine,
    Sensitivity,
    ShareTable,
    SharingModel,
    write_document,
)
from tidegate_proxy.deployed.folder import DeploymentError
from tidegate_proxy.deployed.repositories import EMULATED_TIMES, Repositories
from tidegate_repo_generator.deploying.deploy import deploy

EMULATED = 'parameters { key: "%s" value: { string_value: "{}" } }\n'
"""A parameter of an emulated GPU in a model's configuration, of such a name."""


def config_in(repository: Path) -> model_config_pb2.ModelConfig:
    config = model_config_pb2.ModelConfig()
    text_format.Parse((repository / "m" / "config.pbtxt").read_text(), config)
    return config


def on_another(first: Layout, kind: str) -> Layout:
    """The first worker on another GPU, of another kind, on which every batch takes 9 ms."""
    worker = first.workers[0].model_copy(
        update={"device": Device("here", 9, kind), "device_class": kind, "name": "a/b"}
    )
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
    path.write_text(path.read_text() + EMULATED % EMULATED_TIMES + EMULATED % "neighbors")
    wanted = on_another(first, "slow")
    parameters = config_in(Repositories(folder).write(1, wanted.workers[0], wanted)).parameters
    assert parameters[EMULATED_TIMES].string_value == '{"1": 9.0, "2": 9.0, "3": 9.0, "4": 9.0}'
    assert "neighbors" not in parameters
    same = on_another(first, "any")
    assert (
        config_in(Repositories(folder).write(2, same.workers[0], same)).parameters[EMULATED_TIMES].string_value == "{}"
    )


def emulated_deployment(folder: Path, names: tuple[str, ...]) -> Path:
    """A worker with 40 % of an emulated GPU, and a file that says what neighbors cost these partitions."""
    write_deployment(folder, layout(0, percent=40))
    path = folder / "workers/gpu0/m/config.pbtxt"
    path.write_text(path.read_text() + EMULATED % EMULATED_TIMES)
    table = ShareTable(rows=(1, 4), percents=(20, 40), taken_ms=((20, 10), (40, 20)))
    model = SharingModel(gpu_ms=table, cache_percent=NonDecreasingLine(slope=0.1), sensitivity=Sensitivity(cache=0.5))
    write_document(folder / "interference.json", InterferenceModel(gpu="any", models=dict.fromkeys(names, model)))
    return folder


def test_an_emulated_gpu_feels_who_is_where_it_moved_with_the_share_that_it_has_there(tmp_path: Path) -> None:
    folder = emulated_deployment(tmp_path / "deployment", ("m",))
    repositories = Repositories(folder)
    told = []
    for number, (gpu, percent) in enumerate([(1, 40), (1, 20), (2, 20)]):
        wanted = layout(gpu, percent=percent)
        config = config_in(repositories.write(number, wanted.workers[0], wanted))
        told.append(json.loads(config.parameters["neighbors"].string_value))
    assert [Path(each["board"]).relative_to(folder).as_posix() for each in told] == [
        "boards/here-1",
        "boards/here-1",
        "boards/here-2",
    ]
    assert [each["uses"]["1"] for each in told] == [pytest.approx([cache, 0, 1]) for cache in (10, 5, 5)]
    assert [each["minds"] for each in told] == [[0.5, 0, 0]] * 3


def test_a_partition_that_the_interference_file_does_not_know_is_named(tmp_path: Path) -> None:
    folder = emulated_deployment(tmp_path / "deployment", ("n",))
    wanted = layout(1, percent=40)
    with pytest.raises(DeploymentError, match=r"interference.json knows nothing of partition 'm'.*it has n"):
        Repositories(folder).write(1, wanted.workers[0], wanted)


def test_a_partition_that_the_folder_does_not_have_is_named(tmp_path: Path) -> None:
    folder = write_deployment(tmp_path / "deployment", layout(0))
    part = layout(1).partitions[0].model_copy(update={"blocks": (0, 3)})
    wanted = layout(1).model_copy(update={"partitions": (part,)})
    says = r"worker 'gpu1' is to host partition 'm' \(blocks 0 to 3 of 'm'\).*where the blocks of 'm' are"
    with pytest.raises(DeploymentError, match=says):
        Repositories(folder).write(1, wanted.workers[0], wanted)


def test_what_a_deployment_that_was_killed_has_left_goes(tmp_path: Path) -> None:
    folder = write_deployment(tmp_path / "deployment", layout(0))
    left = folder / "run" / "workers" / "3-gpu9"
    left.mkdir(parents=True)
    Repositories(folder)
    assert not left.exists()


def test_partitions_that_the_folder_does_not_have_are_generated(tmp_path: Path) -> None:
    blocks = write_blocks(tmp_path)
    first, wanted = of_blocks((0, 2)), of_blocks((0, 1), (1, 2))
    write_document(tmp_path / "layout.json", first)
    deploy(tmp_path / "layout.json", tmp_path / "deployment", {"m": blocks})
    repositories = Repositories(tmp_path / "deployment")
    for number, worker in enumerate(wanted.workers):
        repository = repositories.write(number, worker, wanted)
        (name,) = worker.hosts
        config = text_format.Parse((repository / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
        assert (config.name, config.max_batch_size) == (name, 2)
        (node,) = onnx.load(repository / name / "1" / "model.onnx").graph.node
        assert node.op_type == ("Relu", "Neg")[number]
    blocks.rename(tmp_path / "gone")
    again = wanted.model_copy(update={"network": LayoutNetwork(gbps=1)})
    with pytest.raises(DeploymentError, match=r"partitions could not be generated: .*blocks"):
        repositories.write(9, again.workers[0], again)
