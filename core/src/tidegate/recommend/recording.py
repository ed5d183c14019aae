"""Traffic of an event log (`tidegate serve --event-log`): arrivals, cut into windows that take the place of seeds.

A recording is one sample. To evaluate a choice on other requests than those that chose it, windows with even numbers
choose and the others evaluate.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tidegate.api import NEVER_NS, NS_PER_MS, Model, RequestArrived, Setup
from tidegate.observation import LogEntry, Reducer
from tidegate.observation.timeline_recorder import MAX_RESPONSE_MARGIN_FRACTION
from tidegate.recommend.hardware import checked
from tidegate.recommend.observed_latency import ObservedLatencies
from tidegate.workload import RequestSequence, Scenario
from tidegate.workload.arrivals import NS_PER_S

TRAFFIC_WINDOWS = 16
"""Number of windows that a recording is cut into."""
FIRST_HELD_OUT = 1000
"""First seed of the held-out seeds, which evaluate the choice."""
MIN_REQUESTS = 400
"""Minimum number of recorded requests."""


MIN_ADVISED_LENGTH_S = 30.0
"""Minimum length of a recording, in seconds, from which a change is recommended: a shorter one is one burst or lull."""


class RecordingError(Exception):
    """Error: a recording contains too little; the message names the remedy."""


@dataclass(frozen=True)
class RecordedTraffic:
    """Recorded arrivals in order of time."""

    models: tuple[str, ...]
    at_ns: "array[int]"
    """Arrival times in ns since the first arrival."""
    model: "array[int]"
    rows: "array[int]"
    shapes: tuple[str, ...] | None
    attainment: float
    """Fraction of the requests that were on time when they were recorded, cancelled ones aside."""

    @property
    def length_ns(self) -> int:
        """Time from the first arrival to the last, in ns."""
        return self.at_ns[-1]

    @property
    def is_short(self) -> bool:
        """Whether the recording is too short for a change to be recommended."""
        return self.length_ns < MIN_ADVISED_LENGTH_S * NS_PER_S

    @property
    def window_ns(self) -> int:
        """Length of each window in ns, including the warm-up."""
        return self.length_ns // TRAFFIC_WINDOWS

    def requests(
        self, seed: int, load: float, slos_ns: tuple[int, ...], served_late: frozenset[str]
    ) -> RequestSequence:
        """Return the requests of a seed's window at `load` times the recorded load.

        Time is compressed by that factor, over as many more windows. `slos_ns`: SLO in ns by model number.
        `served_late`: names of models whose late requests are served.
        """
        number = 2 * (seed % FIRST_HELD_OUT) + (seed >= FIRST_HELD_OUT)
        start_ns = number % TRAFFIC_WINDOWS * self.window_ns
        start_ns = min(start_ns, max(0, self.length_ns - round(self.window_ns * load)))
        chosen = [
            index for index, at_ns in enumerate(self.at_ns) if 0 <= at_ns - start_ns < round(self.window_ns * load)
        ]
        return RequestSequence(
            models=self.models,
            slos_ns=slos_ns,
            at_ns=array("q", [round((self.at_ns[index] - start_ns) / load) for index in chosen]),
            model=array("q", [self.model[index] for index in chosen]),
            rows=array("q", [self.rows[index] for index in chosen]),
            apps=None,
            shapes=None if self.shapes is None else tuple(self.shapes[index] for index in chosen),
            times_ms=None,
            served_late=served_late,
        )


def read_recording(setup: Setup, entries: Iterable[LogEntry]) -> tuple[RecordedTraffic, dict[str, Any]]:
    """Return the arrivals of an event log, and its models as sections of a scenario.

    A model's SLO is the one it was served with, if most requests had about that, otherwise the median of theirs. Raises
    RecordingError for too little traffic, and ValueError if the file is no event log.
    """
    known = {model.name: number for number, model in enumerate(setup.models)}
    at_ns, model, rows = array("q"), array("q"), array("q")
    shapes: list[str] = []
    slos_ns: defaultdict[str, list[int]] = defaultdict(list)
    sizes: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    asked: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    observed = ObservedLatencies(setup)
    reducer = Reducer(observed)
    for entry in entries:
        reducer.handled(entry.event, entry.effects)
        if not isinstance(entry.event, RequestArrived) or entry.event.request.model not in known:
            continue
        request = entry.event.request
        at_ns.append(entry.event.now_ns)
        model.append(known[request.model])
        rows.append(request.rows)
        shapes.append(request.shape)
        sizes[request.model][request.rows] += 1
        asked[request.model][request.shape] += 1
        if request.deadline_ns < NEVER_NS:
            slos_ns[request.model].append(request.deadline_ns - request.arrival_ns)
    if len(at_ns) < MIN_REQUESTS or not at_ns[-1] > at_ns[0]:
        raise RecordingError(
            f"{len(at_ns)} scheduled requests were recorded: record at least {MIN_REQUESTS}, under load (those that "
            "bypass the scheduler, as all do in shadow mode, are not recorded)"
        )
    known_models = [name for name in known if name in sizes]
    renumbered = {known[name]: number for number, name in enumerate(known_models)}
    first_ns = at_ns[0]
    recording = RecordedTraffic(
        tuple(known_models),
        array("q", [each - first_ns for each in at_ns]),
        array("q", [renumbered[each] for each in model]),
        rows,
        tuple(shapes) if any(shapes) else None,
        (reducer.tally.answered - reducer.tally.late) / max(1, reducer.tally.ended - reducer.tally.cancelled),
    )
    if any(each.pipelines for each in setup.models):
        raise RecordingError("models that are split were recorded: describe them in a scenario, whole, with --blocks")
    models = [
        {
            **_as_listed(own, slos_ns[own.name], sizes[own.name]),
            **observed.of_model(own.name, asked[own.name], own.max_rows),
        }
        for own in setup.models
        if own.name in sizes
    ]
    duration_s = recording.window_ns / NS_PER_S
    stalls = observed.stalls()
    return recording, {
        "warmup_s": 0.0,
        "duration_s": duration_s,
        "models": models,
        "workers": [{"count": 1, "gpu": worker.device_class} for worker in setup.workers],
        "arrivals": {"process": "poisson", "rate_rps": len(at_ns) * NS_PER_S / recording.length_ns},
        **({"simulation": {"stalls": stalls}} if stalls else {}),
    }


def _as_listed(own: Model, had_ns: Sequence[int], sizes: dict[int, int]) -> dict[str, Any]:
    """A model as a scenario lists it, but for how long it takes; `had_ns`: the time that its requests had."""
    slo_ns = median(had_ns) if had_ns else None
    least_share = 1 - MAX_RESPONSE_MARGIN_FRACTION  # the rest may have been kept for the response latency
    if slo_ns is not None and own.slo_ns is not None and least_share * own.slo_ns <= slo_ns <= own.slo_ns:
        slo_ns = own.slo_ns
    return {
        "name": own.name,
        "slo_ms": None if slo_ns is None else slo_ns / NS_PER_MS,
        "on_deadline_miss": own.on_deadline_miss,
        "scheduling": "batched" if own.merges else "unbatched",
        "max_batch": own.max_rows,
        "weight": sum(sizes.values()),
        "rows": {"distribution": "table", "values": sorted(sizes), "weights": [sizes[rows] for rows in sorted(sizes)]},
    }


def scenario_of_recording(given: dict[str, Any], name: str) -> Scenario:
    """Return the scenario for a recording.

    `given`: sections of `read_recording`; `name`: name of the scenario. Raises RecordingError, ScenarioError.
    """
    for model in given["models"]:
        if "profiles" not in model:
            raise RecordingError(
                f"nothing is known of how long {model['name']!r} takes, and hardly a batch of it ran: serve with a "
                "profile file (`profiles`), and record again"
            )
    return checked({"name": name, **given}, Scenario.model_construct(), "the recording")
