"""Requests of a scenario: the same for every policy that is compared, simulated or live."""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from random import Random
from statistics import NormalDist

from tidegate.api import NEVER_NS, Request, ms_to_ns
from tidegate.workload.arrivals import NS_PER_S
from tidegate.workload.distributions import Constant, Draw, choosing_from, stream
from tidegate.workload.scenario import AppSpec, ModelSpec, ProcessSpec, Scenario, TraceSpec
from tidegate.workload.tenants import Tenancy, draw_tenancy
from tidegate.workload.traces import Trace, TraceError, TraceFormat, read_trace

RANK_POINTS = 1000
"""Number of quantiles of each application's additional latency by which its requests are ranked."""
MIN_PROBABILITY = 1e-6
"""Smallest probability at which a distribution of features is evaluated."""

RowsOf = Callable[[], tuple[int, str, float]]


@dataclass(frozen=True)
class RequestSequence:
    """Requests in order of arrival; the position of each is its id. Times in ns since the start of the warm-up."""

    models: tuple[str, ...]
    slos_ns: tuple[int, ...]
    """SLO of each model in ns, in the order of `models`; NEVER_NS: none."""
    at_ns: "array[int]"
    model: "array[int]"
    """Index of the model of each request."""
    rows: "array[int] | None"
    """Rows of each request; None: one each."""
    apps: tuple[str, ...] | None
    """Application of each request; None: untagged."""
    shapes: tuple[str, ...] | None
    """Shape of each request; None: no shapes."""
    times_ms: "array[float] | None"
    """Additional latency of each request in ms, unknown to policies; None: none."""
    served_late: frozenset[str] = frozenset()
    """Models whose late responses are wanted."""
    responses: "array[int] | None" = None
    """Number of responses to each request; None: one each."""
    rest_ns: "array[int] | None" = None
    """Time from the first to the last response to each request alone on its worker, in ns; None: 0."""
    slos_gap_ns: tuple[int, ...] = ()
    """SLO of the mean gap between responses of each model in ns; NEVER_NS: none. Empty: no model has one."""
    tenancy: Tenancy | None = None
    """Tenants of the requests; None: there are none."""
    features: "array[float] | None" = None
    """Feature of each request; None: none declares one."""

    def __len__(self) -> int:
        return len(self.at_ns)

    def __iter__(self) -> Iterator[Request]:
        return self._requests() if self.tenancy is None else self.tenancy.apply(self._requests())

    def _requests(self) -> Iterator[Request]:
        names, slos_ns, rows, apps, shapes = self.models, self.slos_ns, self.rows, self.apps, self.shapes
        features = self.features
        late_until_ns = [NEVER_NS if name in self.served_late else 0 for name in names]
        for index, (at_ns, which) in enumerate(zip(self.at_ns, self.model, strict=True)):
            slo_ns = slos_ns[which]
            yield Request(
                index,
                names[which],
                1 if rows is None else rows[index],
                at_ns,
                NEVER_NS if slo_ns == NEVER_NS else at_ns + slo_ns,
                "",
                "" if apps is None else apps[index],
                "" if shapes is None else shapes[index],
                late_until_ns=late_until_ns[which],
                feature=0.0 if features is None else features[index],
            )


def draw_requests(scenario: Scenario, seed: int, load: float = 1.0) -> RequestSequence:
    """Draw the requests of the warm-up and of the measured window from a seed.

    `load`: factor on the arrival rate. Arrivals, rows, additional latency and applications have their own random
    streams for each model. Raises TraceError.
    """
    instants = _instants(scenario, seed, load)
    specs = scenario.models
    # An arrival and its model as one integer: sorting those is what costs the least.
    count = len(instants)
    keys = [at_ns * count + which for which, times_ns in enumerate(instants) for at_ns in times_ns]
    keys.sort()
    rows = times = None
    apps: list[str] | None = None
    if not all(_is_plain(model) for model in specs):
        draws = [*(_details(model, seed) for model in specs), *(_one_row for _ in scenario.graphs)]
        rows, times, apps = array("q"), array("d"), []
        for key in keys:
            own_rows, app, time_ms = draws[key % count]()
            rows.append(own_rows)
            apps.append(app)
            times.append(time_ms)
    responses, rest_ns = _draw_streams(specs, [key % count for key in keys], seed)
    at_ns, of_model = array("q", [key // count for key in keys]), array("q", [key % count for key in keys])
    return RequestSequence(
        models=tuple(scenario.request_names),
        slos_ns=tuple(map(_slo_ns, scenario.slos_ms.values())),
        at_ns=at_ns,
        model=of_model,
        rows=rows,
        apps=tuple(apps) if apps and any(apps) else None,
        shapes=_draw_shapes(specs, [key % count for key in keys], seed),
        times_ms=times if times and any(times) else None,
        served_late=frozenset(
            model.name for model in specs if model.on_deadline_miss == "serve" and model.slo_ms is not None
        ),
        responses=responses,
        rest_ns=rest_ns,
        slos_gap_ns=() if responses is None else tuple(map(_slo_gap_ns, specs)),
        tenancy=draw_tenancy(scenario.tenants, tuple(scenario.request_names), at_ns, of_model, rows, seed),
        features=_draw_features(specs, of_model, times, seed),
    )


def _slo_ns(slo_ms: float | None) -> int:
    return NEVER_NS if slo_ms is None else ms_to_ns(slo_ms)


def _slo_gap_ns(model: ModelSpec) -> int:
    slo_gap_ms = model.streaming.slo_gap_ms if model.streaming else None
    return NEVER_NS if slo_gap_ms is None else ms_to_ns(slo_gap_ms)


def _draw_streams(
    specs: Sequence[ModelSpec], of_model: Iterable[int], seed: int
) -> "tuple[array[int], array[int]] | tuple[None, None]":
    """The responses to each request, and the time from the first to the last; None where no model streams."""
    if not any(spec.streaming for spec in specs):
        return None, None
    draws = [
        (
            spec.streaming.responses.drawing_from(stream(seed, "responses", spec.name)),
            spec.streaming.gap_ms.drawing_from(stream(seed, "gaps", spec.name)),
        )
        if spec.streaming
        else None
        for spec in specs
    ]
    responses, rest_ns = array("q"), array("q")
    for which in of_model:
        draw = draws[which]
        count = max(1, round(draw[0]())) if draw else 1
        responses.append(count)
        rest_ns.append(ms_to_ns((count - 1) * draw[1]()) if draw and count > 1 else 0)
    return responses, rest_ns


def _draw_shapes(specs: Sequence[ModelSpec], of_model: Iterable[int], seed: int) -> tuple[str, ...] | None:
    """The shape of each request, whose models are given by number; None where no model has any."""
    if not any(spec.shapes for spec in specs):
        return None
    names = [[shape.shape for shape in spec.shapes] or [""] for spec in specs]
    choices = [
        choosing_from([shape.weight for shape in spec.shapes] or [1.0], stream(seed, "shapes", spec.name))
        for spec in specs
    ]
    return tuple(names[which][choices[which]()] for which in of_model)


def _draw_features(
    specs: Sequence[ModelSpec], of_model: Iterable[int], times_ms: "array[float] | None", seed: int
) -> "array[float] | None":
    """The feature of each request, by the rank of its additional latency; None where no model has any."""
    if not any(spec.feature for spec in specs):
        return None
    draws = [_drawing_feature(spec, stream(seed, "features", spec.name)) for spec in specs]
    return array(
        "d",
        (
            draws[which](times_ms[index] if times_ms else 0.0) if which < len(draws) else 0.0
            for index, which in enumerate(of_model)
        ),
    )


def _drawing_feature(spec: ModelSpec, rng: Random) -> Callable[[float], float]:
    """Return a function that draws a feature for a request by its additional latency.

    The ranks of both, as normal variables, have the correlation of the scenario (Gaussian copula).
    """
    feature = spec.feature
    if feature is None:
        return lambda _time_ms: 0.0
    ranked = sorted(
        (time_ms.quantile((number + 0.5) / RANK_POINTS), app.weight)
        for app in spec.apps or [AppSpec(name=spec.name)]
        for time_ms in [app.time_ms or spec.time_ms]
        for number in range(RANK_POINTS)
    )
    known = [time_ms for time_ms, _ in ranked]
    up_to = [0.0, *accumulate(weight for _, weight in ranked)]
    normal = NormalDist()

    def draw(time_ms: float) -> float:
        least, most = up_to[bisect_left(known, time_ms)], up_to[bisect_right(known, time_ms)]
        share = (least + (most - least) * rng.random()) / up_to[-1]
        own = rng.gauss(0, 1)
        rank = feature.correlation * normal.inv_cdf(min(max(share, MIN_PROBABILITY), 1 - MIN_PROBABILITY))
        rank += sqrt(1 - feature.correlation**2) * own
        return feature.values.quantile(min(max(normal.cdf(rank), MIN_PROBABILITY), 1 - MIN_PROBABILITY))

    return draw


def mean_rate_rps(scenario: Scenario, load: float = 1.0) -> float:
    """Return the mean arrivals per second of all models; `load`: factor on the scenario's rate. Raises TraceError."""
    arrivals = scenario.arrivals
    if isinstance(arrivals, ProcessSpec):
        return arrivals.mean_rps(scenario.duration_s) * load
    return _trace(scenario, arrivals).rate_rps * arrivals.scale * load


def _instants(scenario: Scenario, seed: int, load: float) -> list[list[int]]:
    """The arrivals of each model, in ns from the start of the warm-up, in order."""
    total_ns = round((scenario.warmup_s + scenario.duration_s) * NS_PER_S)
    weights = scenario.all_weights()
    if isinstance(scenario.arrivals, TraceSpec):
        return _from_trace(scenario, scenario.arrivals, seed, load, total_ns)
    process, total = scenario.arrivals, sum(weights)
    return [
        list(
            process.build(load * weight / total, scenario.warmup_s).instants_ns(
                total_ns, stream(seed, "arrivals", name)
            )
        )
        if weight
        else []
        for name, weight in zip(scenario.request_names, weights, strict=True)
    ]


def _from_trace(scenario: Scenario, spec: TraceSpec, seed: int, load: float, total_ns: int) -> list[list[int]]:
    trace = _trace(scenario, spec)
    of_source = _models_of_sources(scenario, spec, trace)
    choose = choosing_from(scenario.all_weights(), stream(seed, "models of the trace"))
    ns_per_trace_s = NS_PER_S / (spec.scale * load)
    instants: list[list[int]] = [[] for _ in scenario.request_names]
    for at_s, source in _repeated(trace, spec.start_s):
        at_ns = int(at_s * ns_per_trace_s)
        if at_ns >= total_ns:
            break
        instants[choose() if source is None else of_source[source]].append(at_ns)
    return instants


def _repeated(trace: Trace, start_s: float) -> Iterator[tuple[float, str | None]]:
    """The arrivals from an instant on, in seconds after it, for ever."""
    sources = trace.source or (None,) * len(trace.at_s)
    start_s %= trace.period_s
    begun_s = -start_s
    while True:
        for at_s, source in zip(trace.at_s, sources, strict=True):
            if begun_s + at_s >= 0:
                yield begun_s + at_s, source
        begun_s += trace.period_s


def _models_of_sources(scenario: Scenario, spec: TraceSpec, trace: Trace) -> dict[str, int]:
    """Models by the names in the trace; functions of Azure's go round the models, the most frequent first."""
    sources = trace.sources_by_popularity()
    names = scenario.request_names
    if spec.format is TraceFormat.azure_functions_2021:
        return {source: rank % len(names) for rank, source in enumerate(sources)}
    if unknown := [source for source in sources if source not in names]:
        raise TraceError(
            f"{scenario.folder / spec.file}: {unknown[0]!r} is no model of the scenario (it has {', '.join(names)}): "
            "list it, or leave the names out of the trace"
        )
    return {source: names.index(source) for source in sources}


def _trace(scenario: Scenario, spec: TraceSpec) -> Trace:
    return read_trace(scenario.folder / spec.file, spec.format)


def _one_row() -> tuple[int, str, float]:
    return 1, "", 0.0


def _is_plain(model: ModelSpec) -> bool:
    return not model.apps and model.rows == Constant(value=1) and model.time_ms == Constant(value=0)


def _details(model: ModelSpec, seed: int) -> RowsOf:
    """Return a generator of rows, application and added milliseconds of the model's requests."""
    apps = [(app.name, app.rows or model.rows, app.time_ms or model.time_ms) for app in model.apps]
    apps = apps or [("", model.rows, model.time_ms)]
    draws: list[tuple[str, Draw, Draw]] = [
        (
            name,
            rows.drawing_from(stream(seed, "rows", model.name, name)),
            time_ms.drawing_from(stream(seed, "times", model.name, name)),
        )
        for name, rows, time_ms in apps
    ]
    choose = choosing_from([app.weight for app in model.apps] or [1.0], stream(seed, "applications", model.name))
    largest = model.max_rows

    def draw() -> tuple[int, str, float]:
        name, rows, time_ms = draws[choose()]
        return min(max(round(rows()), 1), largest), name, time_ms()

    return draw


DISTRIBUTION_POINTS = 10_000
"""Number of evenly spaced quantiles at which a distribution of rows is evaluated."""


def sizes_of(scenario: Scenario) -> dict[str, dict[int, float]]:
    """Return {model: {rows: fraction of the model's requests}}, the distribution from which `draw_requests` draws."""
    return {model.name: _shares(model) for model in scenario.models}


def _shares(model: ModelSpec) -> dict[int, float]:
    apps = [(app.weight, app.rows or model.rows) for app in model.apps] or [(1.0, model.rows)]
    total = sum(weight for weight, _ in apps)
    shares: defaultdict[int, float] = defaultdict(float)
    for weight, rows in apps:
        counts = Counter(
            min(max(round(rows.quantile((number + 0.5) / DISTRIBUTION_POINTS)), 1), model.max_rows)
            for number in range(DISTRIBUTION_POINTS)
        )
        for size, count in counts.items():
            shares[size] += weight / total * count / DISTRIBUTION_POINTS
    return {size: shares[size] for size in sorted(shares) if shares[size] > 0}
