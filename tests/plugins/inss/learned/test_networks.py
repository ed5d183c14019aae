"""Networks as files: what fits is taken, what does not is refused and says why."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.plugins.inss.learned.made_up import workload
from tidegate.api import PlanningError
from tidegate_inss.learned.networks import PLACING, SHARING, SHIPPED_FOLDER, Networks
from tidegate_inss.learned.placement import GROUP_SIZE, PLACING_STATE
from tidegate_inss.learned.scheduling import schedule
from tidegate_inss.learned.sharing import SHARING_ACTION, SHARING_STATE


@pytest.mark.parametrize("name", ["inss", "inss-ni"])
def test_shipped_networks_decide_within_their_bounds(name: str) -> None:
    networks = Networks(SHIPPED_FOLDER / name)
    rng = np.random.default_rng(0)
    states = rng.normal(size=(7, PLACING_STATE)).astype(np.float32)
    masks = rng.random((7, GROUP_SIZE)) < 0.5
    masks[:, 1] = True
    assert masks[np.arange(7), networks.place(states, masks)].all()
    actions = networks.share(rng.normal(size=(7, SHARING_STATE)).astype(np.float32))
    assert actions.shape == (7, SHARING_ACTION)
    assert np.abs(actions).max() <= 1


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (PLACING, {"gpus_per_group": "8"}, "placing.onnx: trained for gpus_per_group 8, not 4: train networks for"),
        (SHARING, {"models_per_gpu": "10"}, "sharing.onnx: trained for models_per_gpu 10, not 8: train networks for"),
        (SHARING, {}, "sharing.onnx: it does not say for which sizes it was trained"),
    ],
)
def test_networks_for_other_sizes_are_refused(tmp_path: Path, name: str, change: dict[str, str], words: str) -> None:
    for file in (PLACING, SHARING):
        model = onnx.load(SHIPPED_FOLDER / "inss" / file)
        if file == name:
            said = {each.key: each.value for each in model.metadata_props} | change
            onnx.helper.set_model_props(model, said if change else {})
        onnx.save(model, tmp_path / file)
    with pytest.raises(PlanningError, match=words):
        Networks(tmp_path)


def test_one_network_in_place_of_the_other_is_refused(tmp_path: Path) -> None:
    for file in (PLACING, SHARING):
        (tmp_path / file).write_bytes((SHIPPED_FOLDER / "inss" / PLACING).read_bytes())
    with pytest.raises(PlanningError, match=rf"sharing\.onnx: its states have {PLACING_STATE} numbers, not"):
        Networks(tmp_path)


def test_a_folder_without_networks_and_a_file_that_is_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(PlanningError, match=r"placing\.onnx: there is no such file; tidegate train-inss writes"):
        Networks(tmp_path)
    (tmp_path / PLACING).write_text("a text")
    with pytest.raises(PlanningError, match=r"placing\.onnx: .*; tidegate train-inss writes"):
        Networks(tmp_path)


def test_many_groups_are_decided_by_a_network_as_each_by_itself() -> None:
    networks = Networks(SHIPPED_FOLDER / "inss")
    work = workload(2, problems=3)
    together = schedule(work.loads, work.memory_mib, networks.place, networks.share)
    for number in range(3):
        part = type(work)(work.catalog, work.problems[number : number + 1], work.memory_mib[number : number + 1])
        alone = schedule(part.loads, part.memory_mib, networks.place, networks.share)
        mine = slice(4 * number, 4 * number + 4)
        assert np.array_equal(alone.gpu, together.gpu[work.loads.problem == number] - 4 * number)
        assert np.array_equal(alone.shares.units, together.shares.units[mine])
        assert np.array_equal(alone.shares.batch, together.shares.batch[mine])
