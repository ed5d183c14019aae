"""Drives the tuner of the policy on the monotonic clock. Use it only in the event loop."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from tidegate.control.settings import TuningOptions
from tidegate.host import Plugins
from tidegate.observation import PolicyChanged, PolicyTuned
from tidegate.sim.recent_traffic import RecentTraffic
from tidegate.sim.tuning.candidates import candidates_of, first_candidate
from tidegate.sim.tuning.policy_comparison import Comparison, ComparisonJob
from tidegate.sim.tuning.traffic_window import MAX_REQUESTS, window_of
from tidegate.sim.tuning.tuner import PolicyTuner
from tidegate_proxy.app.simulation_process import SimulationProcess
from tidegate_proxy.app.tuning.tuning_process import TuningAnswer
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.configuration.config import PolicyChoice
from tidegate_proxy.scheduling.driver import Driver

log = logging.getLogger(__name__)

TUNING_POLL_S: Final = 0.5
GIVE_UP_S: Final = 120.0
"""Time in seconds for one comparison."""
PROCESS_MODULE: Final = "tidegate_proxy.app.tuning.tuning_process"


class LiveTuning:
    """Tuner of a driver's policy, from `run` until it is cancelled."""

    def __init__(
        self, driver: Driver, policy: PolicyChoice, plugins: Plugins, on_answer: Callable[[PolicyTuned, float], None]
    ) -> None:
        """Create the tuner of `policy`. `on_answer`: receives each verdict, and the CPU time in s that it cost."""
        options = plugins.validated_options(policy.name, policy.options)
        assert isinstance(options, TuningOptions)
        self._driver = driver
        self._on_answer = on_answer
        self._traffic = RecentTraffic(max_requests=MAX_REQUESTS)
        first = first_candidate(plugins, policy.name, policy.options)
        self.tuner = PolicyTuner(
            options, first, lambda setup: candidates_of(setup, plugins), now_ns=time.monotonic_ns()
        )
        self.process = SimulationProcess(PROCESS_MODULE)
        self._workers = self._present_workers()

    async def run(self) -> None:
        """Run forever: compare policies on each window of traffic."""
        reducer = self._driver.engine.reducer
        reducer.add_listener(self._traffic)
        try:
            while True:
                await asyncio.sleep(TUNING_POLL_S)
                try:
                    await self._look()
                except Exception as error:  # requests do not notice
                    faults.report("the tuner of the policy", error)
                    self.tuner.disturbed(time.monotonic_ns())
        finally:
            reducer.remove_listener(self._traffic)
            await self.process.close()

    async def _look(self) -> None:
        """Compare policies if a window is over."""
        now_ns = time.monotonic_ns()
        self._look_at_workers(now_ns)
        if now_ns < self.tuner.next_wake_ns:
            return
        window = window_of(self._traffic, self._driver.engine, self.tuner.since_ns, now_ns)
        job, events = self.tuner.begin(window)
        cpu_s = 0.0
        if job is not None:
            found, cpu_s = await self._compared(job)
            now_ns = time.monotonic_ns()
            self._look_at_workers(now_ns)
            events = self.tuner.decide(now_ns, found)
        self._carry_out(events)
        self._on_answer(self.tuner.verdict, cpu_s)

    async def _compared(self, job: ComparisonJob) -> tuple[Comparison | str, float]:
        """The result of a job, or why there is none, and the CPU time in s."""
        requests = job.question.requests
        head = replace(job, question=replace(job.question, requests=()))
        try:
            answer = msgspec.json.decode(await self.process.ask(head, requests, GIVE_UP_S), type=TuningAnswer)
        except (ValueError, OSError) as error:
            return str(error), 0.0
        return answer.comparison, answer.cpu_s

    def _look_at_workers(self, now_ns: int) -> None:
        """Begin again if workers came or went."""
        present = self._present_workers()
        if present != self._workers:
            self._workers = present
            self._traffic.clear()
            self.tuner.disturbed(now_ns)

    def _present_workers(self) -> object:
        setup = self._driver.engine.current_setup
        return setup.models, setup.workers

    def _carry_out(self, events: Sequence[PolicyTuned | PolicyChanged]) -> None:
        for event in events:
            now_ns = time.monotonic_ns()
            if isinstance(event, PolicyTuned):
                log.info(
                    "policy tuned",
                    extra={"verdict": event.verdict, "policy": event.policy, "detail": event.reason},
                )
                self._driver.policy_tuned(replace(event, now_ns=now_ns))
                continue
            try:
                self._driver.change_policy(PolicyChoice(name=event.policy, options=event.options))
            except ValueError as error:
                self._carry_out(self.tuner.refused(now_ns, str(error)))
