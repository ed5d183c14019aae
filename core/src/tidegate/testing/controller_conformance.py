"""Conformance tests of controllers in random situations, as a test class for any framework.

Rules that the governor enforces are not tested, because no controller can violate them.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar
from unittest import SkipTest

from pydantic import ValidationError

from tidegate.api import Advise, PlanningError
from tidegate.control import Controller, ControllerSpec, LayoutSteps, ModelLoad, Observation
from tidegate.host import make_controller
from tidegate.schemas import Device, Layout, LayoutModel, LayoutPartition, LayoutPipeline, LayoutWorker, field_errors
from tidegate.testing.conformance import ConformanceError, PluginConformance, ask_other_process

NS_PER_S = 1_000_000_000


def random_layout(rng: random.Random) -> Layout:
    """Return a random layout of up to three models on up to eight GPUs of one or two classes."""
    names = [f"model{number}" for number in range(rng.randint(1, 3))]
    workers = []
    for number in range(rng.randint(1, 8)):
        hosts = names if number == 0 else rng.sample(names, rng.randint(1, len(names)))
        device = Device("node", number, rng.choice(("fast", "slow")))
        workers.append(LayoutWorker(name=f"gpu{number}", device=device, hosts=tuple(sorted(hosts))))
    rows = {name: rng.choice((1, 4, 16)) for name in names}
    times = {name: (rng.uniform(0, 4), rng.uniform(1, 10)) for name in names}
    return Layout(
        models=tuple(
            LayoutModel(
                name=name,
                slo_ms=rng.choice((None, 50.0, 200.0)),
                pipelines=(LayoutPipeline(partitions=(name,), batch=rows[name]),),
            )
            for name in names
        ),
        partitions=tuple(
            LayoutPartition(
                name=name,
                model=name,
                blocks=(0, 1),
                latency_ms={
                    kind: tuple(slower * (times[name][0] * size + times[name][1]) for size in range(1, rows[name] + 1))
                    for kind, slower in (("fast", 1), ("slow", 2))
                },
            )
            for name in names
        ),
        workers=tuple(workers),
    )


def random_observation(rng: random.Random, now_ns: int, period_ns: int, layout: Layout) -> Observation:
    """Return a random observation of a layout at `now_ns`, with or without worker recommendations.

    `rng`: random generator; `period_ns`: length of the observed period in ns.
    """
    busy = rng.random()
    advice = Advise(rng.randint(-8, 8), "made up") if rng.random() < 0.5 else None
    return Observation(
        now_ns,
        period_ns,
        layout,
        {model.name: _random_load(rng, model) for model in layout.models},
        {worker.name: min(1.0, busy * rng.random() * 2) for worker in layout.workers},
        advice,
    )


def _random_load(rng: random.Random, model: LayoutModel) -> ModelLoad:
    rate_rps = rng.choice((0.0, rng.uniform(0, 10), rng.uniform(0, 1000)))
    largest = rng.randint(1, max(pipeline.batch for pipeline in model.pipelines)) if rate_rps else 0
    attainment = rng.choice((1.0, rng.random())) if rate_rps else 1.0
    return ModelLoad(rate_rps, rate_rps * (1 + largest) / 2, largest, round(rate_rps * 10), attainment)


def answers(
    spec: ControllerSpec, options: Mapping[str, Any], first: Layout | None, seed: int, steps: int
) -> list[Layout | None]:
    """Return a controller's answers to a series of `steps` random observations; its layouts take effect.

    `options`: of the controller. `first`: initial layout; None: a random one. `seed`: of situation and controller. A
    PlanningError counts as None.
    """
    rng = random.Random(seed)
    layout = first or random_layout(rng)
    controller = make_controller(spec, layout, dict(options), seed=seed)
    layouts: list[Layout | None] = []
    for step in range(1, steps + 1):
        observed = random_observation(rng, step * 10 * NS_PER_S, 10 * NS_PER_S, layout)
        try:
            answer = controller.step(observed)
        except PlanningError:
            answer = None
        if isinstance(answer, LayoutSteps):
            answer = answer.layouts[-1]
        layouts.append(answer)
        if isinstance(answer, Layout) and rng.random() < 0.8:  # else the governor refused it
            layout = answer
    return layouts


def digest(layouts: list[Layout | None]) -> str:
    """Return a digest of answers, for a comparison byte by byte."""
    text = json.dumps([answer and answer.model_dump(mode="json") for answer in layouts])
    return hashlib.sha256(text.encode()).hexdigest()


def digests(
    spec: ControllerSpec, options: Mapping[str, Any], first: Layout | None, seeds: Iterable[int], steps: int
) -> list[str]:
    """Return a digest of a controller's answers in the situation of each seed; `options`, `steps`: see `answers`."""
    return [digest(answers(spec, options, first, seed, steps)) for seed in seeds]


class ControllerConformance(PluginConformance):
    """Base class of conformance tests of a controller; a subclass names the controller.

    class TestMine(ControllerConformance):
        spec = ControllerSpec("mine", "What it does, in a line", Mine)

    Set `layout` if the controller needs a certain initial layout.
    """

    spec: ClassVar[ControllerSpec]
    options: ClassVar[Mapping[str, Any]] = {}
    """Options of the controller; empty: defaults."""
    layout: ClassVar[Layout | None] = None
    """Initial layout; None: a random one in each situation."""
    situations: ClassVar[int] = 50
    steps: ClassVar[int] = 6
    """Number of observations in each situation."""

    def test_it_answers_with_layouts_that_add_up(self) -> None:
        """Check that each answer is None or a consistent layout. Raises ConformanceError."""
        for seed, layouts in self._layouts_by_seed().items():
            for answer in layouts:
                if answer is None:
                    continue
                if not isinstance(answer, Layout):
                    raise ConformanceError(f"{self._where(seed)}: it answered with {answer!r}")
                try:
                    Layout.model_validate_json(answer.model_dump_json())
                except ValidationError as error:
                    raise ConformanceError(
                        f"{self._where(seed)}: its layout does not add up: {field_errors(error, Layout)[0]}"
                    ) from error

    def test_it_serves_every_model(self) -> None:
        """Check that no answer omits a served model, which the governor would reject. Raises ConformanceError."""
        for seed, layouts in self._layouts_by_seed().items():
            first = {model.name for model in (self.layout or random_layout(random.Random(seed))).models}
            for answer in layouts:
                lost = first - {model.name for model in answer.models} if answer else set()
                if lost:
                    raise ConformanceError(f"{self._where(seed)}: its layout does without {sorted(lost)}")

    def test_it_is_deterministic(self) -> None:
        """Check that equal seeds and observations give equal layouts. Raises ConformanceError."""
        for seed, layouts in self._layouts_by_seed().items():
            if digest(layouts) != digest(answers(self.spec, self.options, self.layout, seed, self.steps)):
                raise ConformanceError(f"{self._where(seed)}: asked the same again, it answers otherwise")

    def test_it_is_deterministic_across_processes(self) -> None:
        """Check that the order of sets and hashes of strings have no effect.

        Raises SkipTest if the class cannot be imported by another process, and ConformanceError if the answers differ.
        """
        seeds = range(min(10, self.situations))
        arguments = (self.spec, dict(self.options), self.layout, seeds, self.steps)
        mine = [digest(self._layouts_by_seed()[seed]) for seed in seeds]
        for hash_seed in ("1", "2"):
            try:
                others = ask_other_process(digests, arguments, hash_seed)
            except ValueError as error:
                raise SkipTest(str(error)) from error
            if others != mine:
                raise ConformanceError(
                    f"controller {self.spec.name!r}: under another PYTHONHASHSEED it gives other layouts: the order of "
                    "a set, or a hash, shows"
                )

    def test_it_is_a_controller(self) -> None:
        """Check the interface that the governor and the loop use. Raises ConformanceError."""
        if not issubclass(self.spec.controller, Controller):
            raise ConformanceError(f"{self.spec.controller!r} is no subclass of Controller")

    @classmethod
    @cache
    def _layouts_by_seed(cls) -> dict[int, list[Layout | None]]:
        """Return its answer in each situation, by seed; exceptions other than PlanningError are failures."""
        layouts = {}
        for seed in range(cls.situations):
            try:
                layouts[seed] = answers(cls.spec, cls.options, cls.layout, seed, cls.steps)
            except Exception as error:
                raise ConformanceError(
                    f"controller {cls.spec.name!r} in situation {seed}: it raised {type(error).__name__}: {error}"
                ) from error
        return layouts

    def _where(self, seed: int) -> str:
        return f"controller {self.spec.name!r} in situation {seed}"
