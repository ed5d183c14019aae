"""Supervisor in the driver process: starts all parts and restarts those that are lost."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any, Final

from tidegate.sim.ray_cluster import first_line
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.deployed.background import Tell
from tidegate_proxy.deployed.folder import DeploymentError
from tidegate_proxy.on_ray.actors import NotStarted, RoleActor, TritonsActor, address_of
from tidegate_proxy.on_ray.files import StoredFiles
from tidegate_proxy.on_ray.plan import ONE_CORE, RayPlan
from tidegate_proxy.on_ray.role_configs import Document, RoleConfigs, files_of_shard, named_files
from tidegate_proxy.on_ray.supervised_part import PartPhase, SupervisedPart

log = logging.getLogger(__name__)

_CALLS_POLL_S: Final = 0.1
_STOP_WITHIN_S: Final = 15.0
"""How long a part may take to end beyond what its own limit is."""
_SUSPECT_S: Final = 20.0
"""How long a node is avoided that does not answer. Ray itself takes about 15 s to see that one is gone."""
_FRONTENDS_LAST_S: Final = 2.0
_STARTING_OR_RUNNING: Final = (PartPhase.STARTING, PartPhase.RUNNING)


@dataclass(eq=False, repr=False)
class Supervisor:
    """Supervisor of the parts, in one thread that waits for the actors: each part has one pending call."""

    _ray: Any
    """The module `ray`."""
    _cluster: str
    """Its name in messages."""
    _plan: RayPlan
    _secret: str
    """Secret of the links."""
    _tell: Tell
    """Called with messages."""
    _changed: Callable[["Supervisor"], None]
    """Called after a part has moved, once clients are served."""

    def __post_init__(self) -> None:
        self._documents = RoleConfigs(self._plan)
        self._files = StoredFiles(self._ray, self._plan.deployment.folder)
        self._devices = [
            SupervisedPart(f"device {each.name}", each.takes, each.shard, each) for each in self._plan.devices
        ]
        self._shards = [
            SupervisedPart(f"shard {number}", ONE_CORE, number) for number in range(len(self._plan.layouts))
        ]
        self._frontends = [
            SupervisedPart(f"frontend {number}", ONE_CORE, is_frontend=True)
            for number in range(1, self._plan.frontends + 1)
        ]
        self._calls: dict[Any, SupervisedPart] = {}
        """References to what is waited for."""
        self._numbers = count(1)
        """Each document has one, as actors may hear of them in another order."""
        self._suspects: dict[str, float] = {}
        """The ids of nodes that are avoided, with until when."""
        self._is_serving = False

    @property
    def parts(self) -> Sequence[SupervisedPart]:
        """The parts that it supervises."""
        return (*self._devices, *self._shards, *self._frontends)

    def start(self) -> None:
        """Start all parts; return when clients are served. Raises DeploymentError for the first that fails to start."""
        workers = [worker.name for device in self._plan.devices for worker in device.workers]
        self._tell({"event": "starting", "workers": workers})
        while not all(part.phase is PartPhase.RUNNING for part in self.parts):
            self._step()
        self._is_serving = True

    def watch(self) -> None:
        """Run forever: restart parts that are lost."""
        while True:
            self._step()

    def stop(self) -> None:
        """Stop everything: frontends, once calls in flight have ended, then shards, then Tritons."""
        drain_timeout_s = self._plan.deployment.config.drain_timeout_s
        for parts, arguments, within_s in (
            (self._frontends, (drain_timeout_s,), drain_timeout_s),
            (self._shards, (_FRONTENDS_LAST_S,), _FRONTENDS_LAST_S),
            (self._devices, (), 0.0),
        ):
            actors = [part.actor for part in parts if part.actor is not None]
            running = [part.actor for part in parts if part.phase in (PartPhase.RUNNING, PartPhase.STARTING)]
            ends = [actor.stop.remote(*arguments) for actor in running]
            if ends:
                self._ray.wait(ends, num_returns=len(ends), timeout=within_s + _STOP_WITHIN_S)
            for actor in actors:
                self._kill(actor)

    # How parts come and go ---------------------------------------------------------------------------------------

    def _step(self) -> None:
        now = time.monotonic()
        for part in self.parts:
            if part.phase is PartPhase.ABSENT and part.retry_at <= now and self._may_be_placed(part):
                self._place(part, now)
            elif part.phase is PartPhase.PLACING:
                self._look_for_room(part, now)
            elif part.phase is PartPhase.PLACED and self._may_start(part):
                self._start(part, now)
        if not self._calls:
            time.sleep(_CALLS_POLL_S)
            return
        done, _ = self._ray.wait(list(self._calls), timeout=_CALLS_POLL_S)
        for call in done:
            part = self._calls.pop(call)
            try:
                self._advance(part, self._ray.get(call))
            except self._ray.exceptions.RayTaskError as error:
                cause = error.cause
                self._failed(part, str(cause) if isinstance(cause, NotStarted) else f"{type(cause).__name__}: {cause}")
            except self._ray.exceptions.ActorUnavailableError as error:
                if part.place:
                    self._suspects[part.place.node] = now + _SUSPECT_S
                self._failed(part, first_line(error))
            except self._ray.exceptions.RayError as error:
                self._failed(part, first_line(error))

    def _advance(self, part: SupervisedPart, answer: Any) -> None:  # noqa: ANN401 - of the call that it waited for
        """The call of a part is answered."""
        now = time.monotonic()
        match part.phase:
            case PartPhase.PLACING:
                part.place = answer
                if part.is_shard:
                    part.enter(PartPhase.FINDING, now)
                    self._calls[part.actor.address.remote()] = part
                else:
                    part.enter(PartPhase.PLACED, now)
            case PartPhase.FINDING:
                part.address = answer
                part.enter(PartPhase.PLACED, now)
            case PartPhase.STARTING:
                part.started = answer
                self._runs(part, now)
            case PartPhase.RUNNING:
                self._failed(part, answer)

    def _may_be_placed(self, part: SupervisedPart) -> bool:
        """Whether it is known what it is best beside."""
        return not part.is_shard or any(device.place for device in self._of_shard(part.shard, *_STARTING_OR_RUNNING))

    def _may_start(self, part: SupervisedPart) -> bool:
        """Whether what it needs is there. A shard that comes back begins with those of its Tritons that run."""
        if part.is_frontend:
            return all(shard.started for shard in self._shards)
        if part.is_shard:
            running = self._of_shard(part.shard, PartPhase.RUNNING)
            return bool(running) and (self._is_serving or len(running) == len(self._of_shard(part.shard, *PartPhase)))
        return True

    def _of_shard(self, number: int, *phases: PartPhase) -> Sequence[SupervisedPart]:
        """The devices of a shard that are at one of some phases."""
        return [device for device in self._devices if device.shard == number and device.phase in phases]

    def _place(self, part: SupervisedPart, now: float) -> None:
        """Have Ray find a node. Shards are best beside a Triton of theirs, the first frontend beside this process."""
        strategies = import_module("ray.util.scheduling_strategies")
        part.avoids = avoided = tuple(node for node, until in self._suspects.items() if until > now)
        near = ""
        if part.is_shard:
            devices = self._of_shard(part.shard, *_STARTING_OR_RUNNING)
            places = [device.place.node for device in devices if device.place]
            near = next((node for node in places if node not in avoided), "")
        elif part is self._frontends[0]:
            near = self._ray.get_runtime_context().get_node_id()
        strategy = strategies.NodeAffinitySchedulingStrategy(near, soft=True) if near else "SPREAD"
        kind, arguments = (
            (TritonsActor, ()) if part.device else (RoleActor, ("frontend" if part.is_frontend else "shard",))
        )
        part.actor = self._ray.remote(kind).options(**part.options(strategy)).remote(*arguments)
        part.enter(PartPhase.PLACING, now)
        self._calls[part.actor.place.remote()] = part

    def _start(self, part: SupervisedPart, now: float) -> None:
        """Have it started on the node where it is."""
        part.enter(PartPhase.STARTING, now)
        if self._is_serving:
            self._files.forget()
        if part.device:
            files = self._files.of_workers(part.device.workers)
            call = part.actor.start.remote(part.device.workers, files, str(self._plan.deployment.folder.absolute()))
        else:
            files = self._files.of(named_files(self._plan.deployment.config))
            own = files_of_shard(self._plan.layouts[part.shard]) if part.is_shard else {}
            call = part.actor.start.remote(next(self._numbers), self._document_of(part), self._secret, files, own)
        self._calls[call] = part

    def _runs(self, part: SupervisedPart, now: float) -> None:
        """It serves: those who need it hear where."""
        part.enter(PartPhase.RUNNING, now)
        self._calls[part.actor.until_it_ends.remote()] = part
        if part.is_outdated:
            self._tell_news(part)
        if part.device:
            for worker in part.device.workers:
                self._tell({"event": "ready", "worker": worker.name, "grpc": self._tritons_of(part)[worker.name].grpc})
            self._tell_news(self._shards[part.shard])
        elif part.is_shard:
            for frontend in self._frontends:
                self._tell_news(frontend)
        if self._is_serving:
            away_s = now - part.lost_at if part.lost_at else 0.0
            host = part.place.host if part.place else ""
            self._tell({"event": "back", "part": part.name, "node": host, "away_s": round(away_s, 3)})
            log.warning("component back", extra={"component": part.name, "node": host, "away_s": round(away_s, 1)})
            self._changed(self)
        part.lost_at = None

    def _failed(self, part: SupervisedPart, why: str) -> None:
        """It is lost, or did not start. Raises DeploymentError where clients were never served."""
        if not self._is_serving:
            where = f" on node {part.place.host}" if part.place else ""
            raise DeploymentError(f"{self._cluster}: {part.name} did not start{where}: {why}")
        self._kill(part.actor)
        part.lost(time.monotonic())
        self._tell({"event": "lost", "part": part.name, "why": why})
        log.error("component lost", extra={"component": part.name, "error": why})

    def _tell_news(self, part: SupervisedPart) -> None:
        """Have a shard or a frontend know where those are that it asks."""
        part.is_outdated = part.phase is PartPhase.STARTING
        if part.phase is PartPhase.RUNNING:
            part.actor.follow.remote(next(self._numbers), self._document_of(part))

    def _kill(self, actor: Any) -> None:  # noqa: ANN401 - a handle
        try:
            self._ray.kill(actor)
        except (self._ray.exceptions.RayError, ValueError) as error:  # it is gone
            log.debug("actor not killed", extra={"error": str(error)})

    # Messages to them --------------------------------------------------------------------------------------------

    def _document_of(self, part: SupervisedPart) -> Document:
        if part.is_frontend:
            return self._documents.of_frontend([shard.address for shard in self._shards])
        tritons: dict[str, TritonAddress] = {}
        for device in self._of_shard(part.shard, PartPhase.RUNNING):
            tritons |= self._tritons_of(device)
        return self._documents.of_shard(tritons, part.address)

    @staticmethod
    def _tritons_of(device: SupervisedPart) -> Mapping[str, TritonAddress]:
        workers = device.started.workers if device.started else ()
        return {worker.name: address_of(worker) for worker in workers}

    def _look_for_room(self, part: SupervisedPart, now: float) -> None:
        """Say that Ray finds no node. Raises DeploymentError where clients were never served."""
        if part.avoids and now - part.since > _SUSPECT_S:  # by now Ray knows better which nodes there are
            self._kill(part.actor)
            self._calls = {call: other for call, other in self._calls.items() if other is not part}
            part.enter(PartPhase.ABSENT, now)
            return
        limit_s = self._plan.deployment.config.startup_timeout_s
        if part.is_warned or now - part.since < limit_s:
            return
        part.is_warned = True
        wanted = ", ".join(f"{name}={amount:g}" for name, amount in part.takes.items())
        words = (
            f"{self._cluster}: no node had {wanted} free for {part.name} within {limit_s:g} s (startup_timeout_s). "
            f"{self._nodes()}. Add nodes, end what holds theirs, or say with --takes what a device takes"
        )
        if not self._is_serving:
            raise DeploymentError(words)
        log.error("no node has room", extra={"component": part.name, "error": words})

    def _nodes(self) -> str:
        nodes = []
        for node in self._ray.nodes():
            if node["Alive"]:
                has = [
                    f"{name}={amount:g}"
                    for name, amount in sorted(node["Resources"].items())
                    if not name.startswith(("node:", "memory", "object_store_memory"))
                ]
                nodes.append(f"{node['NodeManagerAddress']}: {', '.join(has) or 'nothing'}")
        return f"Its nodes have, in all: {'; '.join(nodes)}"
