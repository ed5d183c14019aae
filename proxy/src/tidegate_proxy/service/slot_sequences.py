"""Sequences of models with slots: each occupies one slot from its first request to its last response.

A sequence is one request of the engine, so every policy queues, places and rejects it as a whole. Its requests run in
its slot, in the order of their arrival, over whichever call or stream they come.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Final

import grpc

from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.scheduling.slots import Slot, SlotWaiter
from tidegate_proxy.service.open_sequences import DEFAULT_IDLE_S
from tidegate_proxy.tritons.backend import CANCEL_AFTER_S, is_shutdown
from tidegate_proxy.tritons.catalog import CurrentCatalog

MIN_IDLE_MARGIN_S: Final = 0.1
"""Seconds beyond a model's longest pause after which its sequence has ended at Triton as well."""

_NOT_STARTED: Final = (
    "inference request for sequence {sequence} to model '{model}' must specify the START flag on the first request of "
    "the sequence"
)
"""Triton's words for a request of a sequence that has not begun."""

Admit = Callable[[SlotWaiter, int, float | None], None]
"""Schedules a request: its arrival in ns, and the seconds until its client's deadline, or None."""


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """Request of a sequence."""

    waiter: SlotWaiter
    request: PassedThrough
    arrival_ns: int
    remaining_s: float | None


class SlotSequences:
    """Sequences that have a slot or wait for one. Call only from the event loop."""

    def __init__(self, driver: Driver, directory: CurrentCatalog, admit: Admit) -> None:
        """Create it without sequences. `admit`: schedules the request that stands for a new sequence."""
        self.driver = driver
        self._directory = directory
        self._admit = admit
        self._open: dict[tuple[str, str], _SlotSequence] = {}
        """The sequences by model and id."""

    def is_open(self, request: PassedThrough) -> bool:
        """Return whether a request continues a sequence that has a slot or waits for one."""
        return (request.model, request.sequence) in self._open

    def takes(self, request: PassedThrough) -> bool:
        """Return whether a request begins such a sequence, or continues one."""
        return request.starts_sequence or self.is_open(request)

    def add(self, waiter: SlotWaiter, request: PassedThrough, arrival_ns: int, remaining_s: float | None) -> None:
        """Have a request run in the slot of its sequence, after those before it; one that begins it waits for a slot.

        Args:
            waiter: the request.
            request: facts about it.
            arrival_ns: instant of its arrival.
            remaining_s: seconds until its client's deadline, or None.
        """
        key = request.model, request.sequence
        member = _Member(waiter, request, arrival_ns, remaining_s)
        sequence = self._open.get(key)
        if sequence:
            sequence.add(member)
        elif not request.starts_sequence:
            waiter.resolve(self._not_started(request))
        else:
            idle_s = self._directory.catalog.sequence_idle_s.get(request.model, DEFAULT_IDLE_S)
            sequence = self._open[key] = _SlotSequence(self, key, waiter, idle_s + MIN_IDLE_MARGIN_S)
            sequence.add(member)
            self._admit(sequence.holder, arrival_ns, remaining_s)

    def _not_started(self, request: PassedThrough) -> RequestFailed:
        """The failure that Triton has for a request of a sequence that has not begun; of an ensemble, a step's."""
        catalog, model, where = self._directory.catalog, request.model, ""
        while steps := catalog.ensembles.get(model):
            where += f"in ensemble '{model}', "
            model = next((step for step, _ in steps if step in catalog.sequential), steps[0][0])
        words = where + _NOT_STARTED.format(model=model, sequence=request.sequence)
        return RequestFailed(grpc.StatusCode.INVALID_ARGUMENT, words, queued=bool(where))

    def forget(self, key: tuple[str, str]) -> None:
        """Forget a sequence that has ended."""
        self._open.pop(key, None)


class _SlotSequence:
    """One sequence: its slot, its requests in flight, and those that wait for the slot."""

    def __init__(self, sequences: SlotSequences, key: tuple[str, str], first: SlotWaiter, idle_s: float) -> None:
        self.driver = sequences.driver
        self.is_decoupled = first.envelope.signature.is_decoupled
        """Whether nothing says which request a response is of, so that one request runs at a time."""
        self._sequences = sequences
        self._key = key
        self._idle_s = idle_s
        self._waiting: deque[_Member] = deque()
        self._in_flight: list[_MemberSlot] = []
        """Requests in flight, in order."""
        self._has_sent_last = False
        """Whether the request that ends the sequence is in flight."""
        self._slot: Slot | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.holder = SlotWaiter(first.envelope, first.metadata, first.owner, self._granted, self._failed)
        """The request that stands for the sequence in the engine."""

    def add(self, member: _Member) -> None:
        """Add a request behind the others."""
        member.waiter.leaves_by(partial(self._leave, member))
        self._waiting.append(member)
        self._go_on()

    def is_in_flight(self, member_slot: "_MemberSlot") -> bool:
        """Return whether a request is in flight."""
        return member_slot in self._in_flight

    def end_member(self, member_slot: "_MemberSlot") -> None:
        """Go on after a request that is over."""
        self._in_flight.remove(member_slot)
        if self._has_sent_last and not self._in_flight and self._slot:
            self._end(self._slot)
        else:
            self._go_on()

    def give_up_member(self, member_slot: "_MemberSlot", slot: Slot) -> None:
        """Go on after a request whose client left; a sequence without clients that had no response ends."""
        if slot.has_responded or self._waiting or len(self._in_flight) > 1:
            self.end_member(member_slot)
            return
        self._sequences.forget(self._key)
        self._in_flight.clear()
        self.driver.leave(self.holder)
        slot.give_up()

    def _leave(self, member: _Member) -> bool:
        """Handle a client that left: its request is not sent, or its call ends. Return whether it waited."""
        for member_slot in self._in_flight:
            if member_slot.member is member:
                member_slot.is_left = True
                asyncio.get_running_loop().call_later(CANCEL_AFTER_S, member_slot.cancel)
                return True
        if member not in self._waiting:
            return False
        self._waiting.remove(member)
        if self._slot is None and not self._waiting:
            self._sequences.forget(self._key)
            self.driver.leave(self.holder)
        return True

    def _granted(self, slot: Slot) -> None:
        """Take a slot: the first one, or another since that was lost with its Triton before it responded."""
        self._slot = slot
        slot.call_on_cancel(self._cancel)
        self._waiting.extendleft(each.member for each in reversed(self._in_flight))
        self._in_flight.clear()
        self._has_sent_last = False
        self._go_on()

    def _cancel(self) -> None:
        for member_slot in tuple(self._in_flight):
            member_slot.cancel()

    def _go_on(self) -> None:
        """Send what waits; if nothing does, wait for it."""
        if self._slot is None:
            return
        if self._idle:
            self._idle.cancel()
            self._idle = None
        while self._waiting and not self._has_sent_last and not (self.is_decoupled and self._in_flight):
            member = self._waiting.popleft()
            if not self._in_flight:
                self._slot.begin_member()
            member_slot = _MemberSlot(self, self._slot, member)
            self._in_flight.append(member_slot)
            self._has_sent_last = member.request.ends_sequence
            member.waiter.take(member_slot)
        if not self._in_flight:
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._end, self._slot)

    def _end(self, slot: Slot) -> None:
        """Free the slot; requests behind the last one begin a sequence of the same id."""
        self._sequences.forget(self._key)
        self._slot = None
        slot.finished()
        waiting, self._waiting = self._waiting, deque()
        for member in waiting:
            self._sequences.add(member.waiter, member.request, member.arrival_ns, member.remaining_s)

    def _failed(self, failure: RequestFailed) -> None:
        """Fail all requests: the sequence was rejected, or lost with its Triton."""
        self._sequences.forget(self._key)
        self._slot = None
        if self._idle:
            self._idle.cancel()
        members = [each.member for each in self._in_flight if not each.is_left] + list(self._waiting)
        self._in_flight.clear()
        self._waiting.clear()
        for member in members:
            member.waiter.resolve(failure)


class _MemberSlot(Slot):
    """Slot of a sequence, as one of its requests in flight has it."""

    __slots__ = ("_has_response", "_sequence", "_whole", "is_left", "member")

    def __init__(self, sequence: _SlotSequence, whole: Slot, member: _Member) -> None:
        super().__init__(whole.occupied, whole.run)
        self._sequence = sequence
        self._whole = whole
        self._has_response = False
        self.member = member
        self.is_left = False
        """Whether its client has left."""

    @property
    def is_held(self) -> bool:
        return self._sequence.is_in_flight(self) and self._whole.is_held

    @property
    def shares_stream(self) -> Hashable | None:
        return None if self._sequence.is_decoupled else self._whole

    def responded(self) -> None:
        if self.is_held:
            self._has_response = True
            self._whole.responded()

    def finished(self) -> None:
        if self.is_held:
            if not self._has_response:
                self._whole.responded()
            self._sequence.end_member(self)

    def failed(self, code: grpc.StatusCode, details: str) -> None:
        if not self.is_held:
            return
        if is_shutdown(code, details):
            self._whole.failed(code, details)
            return
        if not self.is_left:
            waiter = self.member.waiter
            self._sequence.driver.membership.failed(self.backend, (waiter.owner,), code, details)
            waiter.resolve(RequestFailed(code, details, category="BACKEND"))
        self.finished()

    def give_up(self) -> None:
        if self.is_held:
            self._sequence.give_up_member(self, self._whole)
