"""A client that names short deadlines, or is refused and asks again at once, takes no more than its share."""

from heapq import heappop, heappush
from statistics import median

import pytest

from tests.examples import few
from tidegate.api import Drop, Model, Profile, Request, RequestArrived, Setup, StageFinished, Worker
from tidegate.engine import AnyEffect, AnyStimulus, ClockAdvanced, Engine, StartStage
from tidegate.host import Plugins

MS = 1_000_000
STAGE_MS, SLO_MS, CALLERS = 20, 400, 60
PLUGINS = Plugins.installed()
SETUP = Setup(
    (Model("m", 4, SLO_MS * MS),),
    (Worker(0, "w", ("m",)),),
    (Profile.linear("m", alpha_ms=0.2, beta_ms=STAGE_MS, max_rows=4),),
)


class Loop:
    """Callers of a client with short deadlines, who ask again when answered or refused, and one caller of ours."""

    def __init__(self, policy: str, timeout_ms: float, keys: int) -> None:
        self.engine = Engine(PLUGINS.make_policy(policy, SETUP, {}), name=policy, strict=True, learn=False)
        self._agenda: list[tuple[int, int, AnyStimulus]] = []
        self._timeout_ns, self._keys = round(timeout_ms * MS), keys
        self._arrived_ns: list[int] = []
        self._ours: set[int] = set()
        self.took_ms: list[float] = []
        for at_ns in range(1, CALLERS + 1):
            self._ask(at_ns, "short")
        self._ask(500 * MS, "ours")

    def run(self, until_ns: int) -> None:
        now_ns = 0
        while now_ns < until_ns:
            wake_ns = self.engine.next_wake_ns
            if wake_ns is not None and (not self._agenda or wake_ns <= self._agenda[0][0]):
                event: AnyStimulus = ClockAdvanced(max(wake_ns, now_ns))
            else:
                event = heappop(self._agenda)[2]
            now_ns = event.now_ns
            self._follow(event, self.engine.handle(event))

    def _follow(self, event: AnyStimulus, effects: list[AnyEffect]) -> None:
        for effect in effects:
            if isinstance(effect, StartStage):
                worker_id, batch = effect.batch.stages[0].worker_id, effect.batch
                ends_ns = event.now_ns + STAGE_MS * MS + effect.rows * MS // 5
                self._push(StageFinished(ends_ns, batch.id, 0, worker_id, event.now_ns, ends_ns))
                for number in batch.request_ids:
                    self._over(number, ends_ns)
            elif isinstance(effect, Drop):
                self._over(effect.request_id, event.now_ns)

    def _over(self, number: int, now_ns: int) -> None:
        if number in self._ours:
            self.took_ms.append((now_ns - self._arrived_ns[number]) / MS)
            self._ask(now_ns + MS, "ours")
        else:
            self._ask(now_ns + 5 * MS, "short")

    def _ask(self, at_ns: int, client: str) -> None:
        number = len(self._arrived_ns)
        self._arrived_ns.append(at_ns)
        key = number % self._keys if client == "short" else 0
        due_ns = at_ns + (self._timeout_ns if client == "short" else SLO_MS * MS)
        if client == "ours":
            self._ours.add(number)
        self._push(RequestArrived(at_ns, Request(number, "m", 1, at_ns, due_ns, f"k{key}", client=client)))

    def _push(self, event: AnyStimulus) -> None:
        order = event.request.id if isinstance(event, RequestArrived) else -1
        heappush(self._agenda, (event.now_ns, order, event))


@pytest.mark.parametrize("policy", ["symphony", "eager"])
@pytest.mark.parametrize("short", few([(0.001, 1), (30, 3), (20, 1), (30, 1), (50, 3)], 2))
def test_a_neighbor_waits_for_a_few_batches_and_not_for_its_own_deadline(policy: str, short: tuple[float, int]) -> None:
    timeout_ms, keys = short
    loop = Loop(policy, timeout_ms, keys)
    loop.run(1_500 * MS)
    assert len(loop.took_ms) > 5
    assert median(loop.took_ms) <= 6 * STAGE_MS
