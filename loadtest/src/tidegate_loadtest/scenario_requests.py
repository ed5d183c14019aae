"""The requests of a scenario as tensors for the models that a server has."""

from collections.abc import Mapping

from tritonclient.grpc import service_pb2 as pb

from tidegate.workload import RequestSequence
from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.model_inputs import DISTINCT_REQUESTS, RandomRequests

Shapes = Mapping[str, tuple[int, ...]]


class ScenarioRequests:
    """A `RequestFactory`: request number i is for the model, and has the rows, that the scenario drew."""

    def __init__(self, requests: RequestSequence, tensors: Mapping[tuple[int, int], RandomRequests]) -> None:
        """`tensors` by (position of the model, rows)."""
        self._requests = requests
        self._tensors = tensors

    def __call__(self, index: int) -> pb.ModelInferRequest:
        """The request to send as number `index`."""
        requests = self._requests
        rows = 1 if requests.rows is None else requests.rows[index]
        return self._tensors[requests.model[index], rows](index)

    @classmethod
    async def drawn(
        cls, connection: Connection, requests: RequestSequence, *, shapes: Shapes, seed: int
    ) -> "ScenarioRequests":
        """Ask the server for every model's inputs. `shapes`, by INPUT or MODEL/INPUT, fills in what they leave open.

        Raises LoadTestError for a model that is not there, takes fewer rows, or whose shapes cannot be drawn.
        """
        rows = requests.rows or [1] * len(requests)
        sizes: dict[int, set[int]] = {}
        for model, count in zip(requests.model, rows, strict=True):
            sizes.setdefault(model, set()).add(count)
        inputs_of = {
            name: {tensor.name for tensor in (await connection.model_metadata(name)).inputs} for name in requests.models
        }
        own_shapes = _by_model(shapes, inputs_of)
        tensors = {}
        for position, name in enumerate(requests.models):
            own_sizes = sorted(sizes.get(position, {1}))
            for size in own_sizes:
                tensors[position, size] = await RandomRequests.for_model(
                    connection,
                    name,
                    rows=size,
                    shapes=own_shapes[name],
                    seed=seed,
                    distinct=max(1, DISTINCT_REQUESTS // len(own_sizes)),
                )
        return cls(requests, tensors)


def _by_model(shapes: Shapes, inputs_of: Mapping[str, set[str]]) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes of each model's inputs: MODEL/INPUT goes before INPUT. Raises LoadTestError for one of no model."""
    own: dict[str, dict[str, tuple[int, ...]]] = {}
    used = set()
    for model, inputs in inputs_of.items():
        named = {name: key for name in inputs for key in (name, f"{model}/{name}") if key in shapes}
        own[model] = {name: shapes[key] for name, key in named.items()}
        used |= {key for name in inputs for key in (name, f"{model}/{name}") if key in shapes}
    if unknown := sorted(set(shapes) - used):
        has = "; ".join(f"{model}: {', '.join(sorted(inputs))}" for model, inputs in inputs_of.items())
        raise LoadTestError(f"--shape {unknown[0]}: no model of the scenario has this input ({has})")
    return own
