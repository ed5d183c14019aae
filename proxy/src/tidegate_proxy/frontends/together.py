"""What concerns several homes, asked of all of them and answered as if they were one server, over gRPC."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2

from tidegate_proxy.base.faults import faults
from tidegate_proxy.base.outcome import Outcome, RequestFailed, answer_in, own_fault
from tidegate_proxy.frontends.home_line import HomeLine, no_home
from tidegate_proxy.observability.merged_statistics import merge_statistics
from tidegate_proxy.service.control import HEALTH, STATISTICS
from tidegate_proxy.service.fan_out import VERBS, ControlCall, FanOut, GrpcAnswers
from tidegate_proxy.transport.interface import Call
from tidegate_proxy.tritons.backend import CANCEL_AFTER_S, SERVICE

OF_ONE_MODEL: Final = frozenset(SERVICE + name for name in ("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig"))
"""Methods whose message names a model, first of all."""
_LOAD, _UNLOAD = SERVICE + "RepositoryModelLoad", SERVICE + "RepositoryModelUnload"
_MODEL_IN: Final[dict[str, Callable[[bytes], str]]] = {
    _LOAD: lambda message: service_pb2.RepositoryModelLoadRequest.FromString(message).model_name,
    _UNLOAD: lambda message: service_pb2.RepositoryModelUnloadRequest.FromString(message).model_name,
    SERVICE + "TraceSetting": lambda message: service_pb2.TraceSettingRequest.FromString(message).model_name,
}
"""Methods whose message names a model elsewhere, or none."""
_VERBS: Final = {SERVICE + verb.method: verb for verb in VERBS}
_SERVING: Final = b"\x08\x01"


class _OfHomes(GrpcAnswers[HomeLine]):
    async def ask(self, triton: HomeLine, question: ControlCall) -> Outcome:
        return await triton.ask(question)


class Together:
    """Lives in the event loop of a front."""

    def __init__(self, homes: Sequence[HomeLine], home_of: Callable[[str], HomeLine | None]) -> None:
        """`home_of`: the home that is asked for a model; None: none has it."""
        self._homes = homes
        self._home_of = home_of
        self._fan_out = FanOut(homes, _OfHomes())

    def respond(
        self, call: Call, message: bytes | None, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        """Answer a client's call that is none of `OF_ONE_MODEL`, in a task that ends a while after the client left."""
        if message is None:
            call.end(grpc.StatusCode.INTERNAL, "no message was received")
            return

        async def answer() -> None:
            try:
                asked = ControlCall(call.method, message, call.metadata, call.remaining_s())
                call.answer(await self._answer(asked))
            except RequestFailed as failure:
                call.end(failure.code, failure.details, failure.refusal)
            except Exception as error:  # one call's fault must not end the front
                faults.report("a call", error)
                failed = own_fault()
                call.end(failed.code, failed.details, failed.refusal)

        work = spawn(answer())

        def cancel() -> None:
            asyncio.get_running_loop().call_later(CANCEL_AFTER_S, work.cancel)

        call.when_gone(cancel)

    async def _answer(self, call: ControlCall) -> bytes:
        """The answer, or RequestFailed is raised."""
        if not any(home.alive for home in self._homes):
            raise no_home()
        return answer_in(await self._outcome(call))

    async def _outcome(self, call: ControlCall) -> Outcome:
        if call.method == STATISTICS:
            return await self._statistics(call)
        if call.method == HEALTH:
            answers = await self._fan_out.all_of(call)
            return next((answer for answer in answers if answer == _SERVING), answers[0])
        if model_in := _MODEL_IN.get(call.method):
            try:
                model = model_in(call.message)
            except ValueError:  # the home has words for it
                model = ""
            if home := self._home_of(model):
                return await home.ask(call)
            if call.method == _LOAD:
                return await self._first_that_can(call)
        if verb := _VERBS.get(call.method):
            return await self._fan_out.answer(verb, call)
        return await next(home for home in self._homes if home.alive).ask(call)

    async def _first_that_can(self, call: ControlCall) -> Outcome:
        """A model that no home has yet is loaded by the first whose Tritons know it."""
        first: Outcome | None = None
        for home in self._homes:
            if not home.alive:
                continue
            outcome = await home.ask(call)
            if not isinstance(outcome, RequestFailed):
                return outcome
            first = first or outcome
        return first or no_home()

    async def _statistics(self, call: ControlCall) -> Outcome:
        """What concerns one model, or all: what the homes have counted, added up where it is the same model's."""
        outcomes = await self._fan_out.all_of(call)
        answers = [outcome for outcome in outcomes if isinstance(outcome, bytes)]
        if len(answers) < 2:
            return answers[0] if answers else outcomes[0]
        responses = [service_pb2.ModelStatisticsResponse.FromString(answer) for answer in answers]
        merged: bytes = merge_statistics(responses, {}).SerializeToString()
        return merged
