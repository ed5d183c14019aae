"""Requests of a scenario as tensors for the models of a server."""

from collections.abc import Mapping
from pathlib import Path

from tritonclient.grpc import service_pb2 as pb

from tidegate.workload import RequestSequence
from tidegate_loadtest.connection import AsksForModels, LoadTestError
from tidegate_loadtest.input_files import FileRequests
from tidegate_loadtest.model_inputs import DISTINCT_REQUESTS, RandomRequests
from tidegate_loadtest.open_loop import RequestFactory
from tidegate_loadtest.shapes import Shape, Shapes, shape_of_request


class ScenarioRequests:
    """Requests of a scenario, a `RequestFactory`: number i has the model, rows and shape that the scenario drew."""

    def __init__(self, requests: RequestSequence, tensors: Mapping[tuple[int, int, str], RequestFactory]) -> None:
        """Prepare the requests. `tensors`: sources by (index of the model, rows, shape)."""
        self._requests = requests
        self._tensors = tensors

    def __call__(self, index: int) -> pb.ModelInferRequest:
        """The request to send as number `index`."""
        requests = self._requests
        rows = 1 if requests.rows is None else requests.rows[index]
        shape = "" if requests.shapes is None else requests.shapes[index]
        return self._tensors[requests.model[index], rows, shape](index)

    @classmethod
    async def drawn(
        cls,
        connection: AsksForModels,
        requests: RequestSequence,
        *,
        shapes: Shapes,
        seed: int,
        inputs: Mapping[str, Path] | None = None,
    ) -> "ScenarioRequests":
        """Query the server for every model's inputs. `shapes`: sizes of dynamic dimensions, by INPUT or MODEL/INPUT.

        The models named in `inputs` get their tensors from a folder, the others random ones. Raises LoadTestError for a
        model that is missing, takes fewer rows, or whose shapes cannot be drawn, and for files that do not fit.
        """
        folders = inputs or {}
        if strange := sorted(folders.keys() - set(requests.models)):
            has = ", ".join(requests.models)
            raise LoadTestError(f"--inputs {strange[0]}=...: the scenario has no such model; it has {has}")
        rows, of_request = requests.rows or [1] * len(requests), requests.shapes or [""] * len(requests)
        sizes: dict[int, set[tuple[int, str]]] = {}
        for model, count, shape in zip(requests.model, rows, of_request, strict=True):
            sizes.setdefault(model, set()).add((count, shape))
        inputs_of = {
            name: {tensor.name for tensor in (await connection.model_metadata(name)).inputs} for name in requests.models
        }
        own_shapes = _by_model(shapes, inputs_of)
        tensors: dict[tuple[int, int, str], RequestFactory] = {}
        for position, name in enumerate(requests.models):
            own_sizes = sorted(sizes.get(position, {(1, "")}))
            for size, shape in own_sizes:
                if folder := folders.get(name):
                    tensors[position, size, shape] = await FileRequests.for_model(
                        connection, name, folder, rows=size, seed=seed
                    )
                    continue
                tensors[position, size, shape] = await RandomRequests.for_model(
                    connection,
                    name,
                    rows=size,
                    shapes=own_shapes[name] | shape_of_request(name, shape),
                    seed=seed,
                    distinct=max(1, DISTINCT_REQUESTS // len(own_sizes)),
                )
        return cls(requests, tensors)


def _by_model(shapes: Shapes, inputs_of: Mapping[str, set[str]]) -> dict[str, dict[str, Shape]]:
    """The shapes of each model's inputs: MODEL/INPUT goes before INPUT. Raises LoadTestError for one of no model."""
    own: dict[str, dict[str, Shape]] = {}
    used = set()
    for model, inputs in inputs_of.items():
        named = {name: key for name in inputs for key in (name, f"{model}/{name}") if key in shapes}
        own[model] = {name: shapes[key] for name, key in named.items()}
        used |= {key for name in inputs for key in (name, f"{model}/{name}") if key in shapes}
    if unknown := sorted(set(shapes) - used):
        has = "; ".join(f"{model}: {', '.join(sorted(inputs))}" for model, inputs in inputs_of.items())
        raise LoadTestError(f"--shape {unknown[0]}: no model of the scenario has this input ({has})")
    return own
