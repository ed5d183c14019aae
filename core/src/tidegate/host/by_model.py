"""The composite policy `by-model`: each part schedules its own models on workers that host no others."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Self

from msgspec.structs import replace
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from tidegate.api import (
    Advise,
    AnyCommand,
    AnyEvent,
    BatchFailed,
    CancelTimer,
    Commands,
    Dispatch,
    Drop,
    LatencyDistributionUpdated,
    Model,
    Policy,
    PolicyOptions,
    PolicySpec,
    ProfileUpdated,
    RequestArrived,
    RequestCancelled,
    SetTimer,
    Setup,
    StageFinished,
    TimerFired,
    TimerLatencyUpdated,
    Worker,
    WorkerDelayed,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.api.events import TimerKey
from tidegate.api.planner import DocumentSection
from tidegate.host.manager import PluginError, Plugins, make_policy
from tidegate.toolkit import FirstComeFirstServed

BY_MODEL = "by-model"
"""Name of the policy."""
DEFAULT_POLICY = PolicySpec("first come, first served", "The oldest on the first idle worker", FirstComeFirstServed)
"""Policy of the models that no part names."""
NO_PART = -1
"""Index of the part of a worker that hosts none of the models."""


class PolicyPart(DocumentSection):
    """Models, and the policy that schedules them."""

    models: tuple[str, ...] = Field(min_length=1, description="Names of models, or patterns such as `bert*`")
    policy: str = Field(description="Name of the plugin; `tidegate plugins` lists them")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of that policy")
    separate_applications: bool = Field(
        default=False,
        description="Give each latency class of applications a queue and a profile of its own, under any policy; "
        "classes are learned from their latency distributions, and the policy sees classes only",
    )
    _spec: PolicySpec = PrivateAttr()

    @model_validator(mode="after")
    def _known(self, info: ValidationInfo) -> Self:
        """Look the policy up: among the plugins of the context, else among those that are installed."""
        plugins: Plugins = (info.context or {}).get("plugins") or Plugins.installed()
        try:
            self._spec = plugins.policy(self.policy)
            plugins.validated_options(self.policy, self.options)
        except PluginError as error:
            raise ValueError(str(error)) from error
        if issubclass(self._spec.policy, ByModel):
            raise ValueError(f"{self.policy!r} is no part of another: name its parts here, in its place")
        return self

    @property
    def spec(self) -> PolicySpec:
        """Spec of the policy that the part names."""
        return self._spec

    def names(self, model: str) -> bool:
        """Whether a model's name matches a pattern of the part."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


class ByModelOptions(PolicyOptions):
    """Options of the policy `by-model`."""

    parts: tuple[PolicyPart, ...] = Field(
        default=(),
        description="Policies and their models; the first part that matches a model has it. Unmatched models are "
        "served first come, first served",
    )


class ByModel(Policy):
    """Composite policy: each part schedules its models as if there were no others; no worker hosts models of two parts.

    A part gets the events of its models and workers, and its commands are passed on. A part that fails is replaced by
    first come, first served; the others continue.
    """

    Options = ByModelOptions
    options: ByModelOptions
    best_effort = True
    supports_pipelined_dispatch = True
    runs_pipelines = True

    def __init__(
        self,
        setup: Setup,
        options: ByModelOptions,
        before: Sequence[Policy | None] = (),
        broken: frozenset[int] = frozenset(),
    ) -> None:
        """Create the parts.

        `before`: policies of the parts that these replace, in the order of the options; None: the part starts without a
        past. `broken`: indexes of failed parts. Raises ValueError if models of two parts share a worker or a partition,
        and PluginError if a part cannot be created.
        """
        super().__init__(setup, options)
        self._part_of = self._parts_of(setup.models)
        self._part_of_worker = {worker.id: _part_that_has(worker, self._part_of) for worker in setup.workers}
        """Parts by worker id. A lost worker stays, since failures of its batches arrive after that."""
        self._part_of_request: dict[int, int] = {}
        """Parts by request id, while it is queued."""
        self.parts: list[Policy] = []
        """The policies of the parts, in the order of the options; the last one is for all other models."""
        self._broken = broken
        """The parts that first come, first served has replaced."""
        self._answered: list[int] = []
        """The part of each command of the latest answer."""
        self._asked = NO_PART
        """The part that was asked last."""
        for index, part in enumerate([*options.parts, None]):
            own = self._setup_of(index)
            if index in broken:
                policy = make_policy(DEFAULT_POLICY, own, {})
            elif before and (followed := before[index]):
                policy = followed.migrate(own)
            else:
                policy = make_policy(part.spec, own, part.options) if part else make_policy(DEFAULT_POLICY, own, {})
            self.readmitted_ids |= policy.readmitted_ids
            policy.readmitted_ids, policy.batch_ids = self.readmitted_ids, self.batch_ids
            self.parts.append(policy)
        self._advised = [0] * len(self.parts)
        deciding = [policy for policy in self.parts if policy.setup.models]
        self.supports_pipelined_dispatch = any(policy.supports_pipelined_dispatch for policy in deciding)
        self.quantile = max((policy.quantile for policy in deciding), default=Policy.quantile)
        self.early_drop_reason = "; ".join(filter(None, (policy.early_drop_reason for policy in deciding)))

    def migrate(self, setup: Setup) -> Self:
        """Return the policy whose parts are migrated."""
        return type(self)(setup, self.options, self.parts, self._broken)

    def repaired(self, setup: Setup) -> Self:
        """Return the policy whose parts are migrated, except failed ones, which are created again."""
        before = [None if index in self._broken else part for index, part in enumerate(self.parts)]
        return type(self)(setup, self.options, before)

    def fallback(self, applied: int) -> tuple[str, Callable[[Setup], Policy]] | None:
        """Return the same parts with first come, first served in place of the failed one."""
        index = self._answered[applied] if applied < len(self._answered) else self._asked
        if index not in range(len(self.options.parts)) or index in self._broken:
            return None
        broken = self._broken | {index}
        part = self.options.parts[index]
        name = f"part {index} ({part.policy} for {', '.join(part.models)})"
        return name, lambda setup: type(self)(setup, self.options, self.parts, broken)

    def check_plan(self, models: Iterable[Model], workers: Iterable[Worker]) -> None:
        """Raise ValueError if a part cannot schedule its models, or if two parts share a worker or a partition."""
        models = tuple(models)
        for index, policy in enumerate(self.parts):
            policy.check_models(model for model in models if self._part_named(model.name) == index)
        part_of = self._parts_of(models)
        for worker in workers:
            _part_that_has(worker, part_of)

    def check_worker(self, worker: Worker) -> None:
        """Raise ValueError if a worker hosts models of two parts."""
        _part_that_has(worker, self._part_of)

    def is_best_effort(self, model: str) -> bool:
        """Return whether the part that schedules the model is best-effort."""
        index = self._part_of.get(model)
        if index is None:  # it is to come with the plan that a successor is made for
            index = self._part_named(model)
        return self.parts[index].is_best_effort(model)

    def is_awaiting(self, worker_id: int) -> bool:
        """Return whether the part of the worker dispatches to it only after WorkerReady."""
        return self.parts[self._part_of_worker[worker_id]].is_awaiting(worker_id)

    def separate_applications(self, model: str) -> bool:
        """Return whether the model's part queues each application by itself."""
        index = self._part_of.get(model, len(self.options.parts))
        return index < len(self.options.parts) and self.options.parts[index].separate_applications

    # Events ------------------------------------------------------------------------------------------------------

    def handle(self, event: AnyEvent) -> Commands:
        """Pass the event to the parts that it concerns, and return their commands."""
        self._answered, self._asked = [], NO_PART
        return super().handle(event)

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        """Pass the event to the part of the request's model."""
        index = self._part_of_request[event.request.id] = self._part_of[event.request.model]
        return self._tell(index, event)

    def on_request_cancelled(self, event: RequestCancelled) -> Commands:
        """Pass the event to the part that queued the request."""
        return self._tell(self._part_of_request.pop(event.request_id), event)

    def on_stage_finished(self, event: StageFinished | BatchFailed | WorkerLost) -> Commands:
        """Pass the event to the worker's part."""
        return self._tell(self._part_of_worker[event.worker_id], event)

    on_batch_failed = on_worker_lost = on_stage_finished

    def on_worker_ready(self, event: WorkerReady) -> Commands:
        """Pass the event to the worker's part, unless a stage still runs and the part wants idle workers only."""
        index = self._part_of_worker[event.worker_id]
        overlaps = event.free_ns > event.now_ns
        return () if overlaps and not self.parts[index].supports_pipelined_dispatch else self._tell(index, event)

    def on_worker_delayed(self, event: WorkerDelayed) -> Commands:
        """Pass the event to the worker's part if it dispatches early."""
        index = self._part_of_worker[event.worker_id]
        return self._tell(index, event) if self.parts[index].supports_pipelined_dispatch else ()

    def on_timer_fired(self, event: TimerFired) -> Commands:
        """Pass the event to the part that set the timer, under the part's key."""
        assert isinstance(event.key, tuple), "all timers are named by _key"
        index, is_tuple, *key = event.key
        assert isinstance(index, int), "all timers are named by _key"
        return self._tell(index, replace(event, key=tuple(key) if is_tuple else key[0]))

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        """Pass the event to the part whose models the worker hosts."""
        index = self._part_of_worker[event.worker.id] = _part_that_has(event.worker, self._part_of)
        return self._tell(index, event)

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        """Pass the event to the part of the profile's partition."""
        return self._tell(self._part_of.get(event.profile.partition, NO_PART), event)

    def on_latency_distribution_updated(self, event: LatencyDistributionUpdated) -> Commands:
        """Pass the event to the part of the model, unless its profiles are derived from the distributions already."""
        model = event.times.model
        return () if self.separate_applications(model) else self._tell(self._part_of.get(model, NO_PART), event)

    def on_timer_latency_updated(self, event: TimerLatencyUpdated) -> Commands:
        """Pass the event to all parts, since they share one process."""
        return [command for index in range(len(self.parts)) for command in self._tell(index, event)]

    # Parts -------------------------------------------------------------------------------------------------------

    def _tell(self, index: int, event: AnyEvent) -> Commands:
        if index == NO_PART:
            return ()
        self._asked = index
        try:
            commands = list(self._relay(index, self.parts[index].handle(event)))
        except Exception:
            self._answered.clear()  # no part's commands are carried out
            raise
        self._answered += [index] * len(commands)
        return commands

    def _relay(self, index: int, commands: Commands) -> Iterator[AnyCommand]:
        """Return a part's commands with timer keys of its own, and recommendations summed over all parts."""
        for command in commands:
            match command:
                case Dispatch(batch):
                    for request_id in batch.request_ids:
                        del self._part_of_request[request_id]
                    yield command
                case Drop(request_id):
                    del self._part_of_request[request_id]
                    yield command
                case SetTimer(key, at_ns):
                    yield SetTimer(_key(index, key), at_ns)
                case CancelTimer(key):
                    yield CancelTimer(_key(index, key))
                case Advise():
                    self._advised[index] = command.workers
                    yield replace(command, workers=sum(self._advised))
                case _:  # about batches that run, which are one part's anyway
                    yield command

    def _part_named(self, model: str) -> int:
        """The first part that names a model, else the one for all others."""
        parts = self.options.parts
        return next((index for index, part in enumerate(parts) if part.names(model)), len(parts))

    def _parts_of(self, models: Iterable[Model]) -> dict[str, int]:
        """The part that decides, by model and by partition. Raises ValueError for a partition of two parts' models."""
        part_of: dict[str, int] = {}
        model_of: dict[str, str] = {}
        for model in models:
            index = self._part_named(model.name)
            for name in (model.name, *(partition for path in model.paths for partition in path.partitions)):
                if part_of.setdefault(name, index) != index:
                    raise ValueError(
                        f"models {model_of[name]!r} and {model.name!r}, for which different parts decide, share "
                        f"{name!r}: let one part name both"
                    )
                model_of.setdefault(name, model.name)
        return part_of

    def _setup_of(self, index: int) -> Setup:
        """Return the setup of a part: its models, its workers, and their profiles."""
        setup = self.setup
        return replace(
            setup,
            models=tuple(model for model in setup.models if self._part_of[model.name] == index),
            workers=tuple(worker for worker in setup.workers if self._part_of_worker[worker.id] == index),
            profiles=tuple(known for known in setup.profiles if self._part_of.get(known.partition) == index),
            latency_distributions=tuple(
                known
                for known in setup.latency_distributions
                if self._part_of.get(known.model) == index and not self.separate_applications(known.model)
            ),
        )


def _part_that_has(worker: Worker, part_of: Mapping[str, int]) -> int:
    """The part whose models a worker hosts. Raises ValueError where it hosts those of several."""
    hosted = {part_of[partition]: partition for partition in worker.hosts if partition in part_of}
    if len(hosted) > 1:
        one, other, *_ = hosted.values()
        raise ValueError(
            f"worker {worker.name!r} hosts {one!r} and {other!r}, for which different parts decide: let one part name "
            "both, or give the models of each part workers of their own"
        )
    return next(iter(hosted), NO_PART)


def _key(index: int, key: TimerKey) -> TimerKey:
    """A timer's name that no other part has."""
    return (index, 1, *key) if isinstance(key, tuple) else (index, 0, key)
