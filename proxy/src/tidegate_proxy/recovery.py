"""What becomes of the requests of a leg that failed."""

import grpc

from tidegate.engine import StartLeg
from tidegate_proxy.backend import GOING, INFER
from tidegate_proxy.client import Client, Outcome, RequestFailed
from tidegate_proxy.forwarded import forwarded
from tidegate_proxy.leg_run import LegRun
from tidegate_proxy.legs import Legs
from tidegate_proxy.membership import Membership
from tidegate_proxy.merging import ScatterError
from tidegate_proxy.waiting_clients import WaitingClients


async def recover(
    legs: Legs, membership: Membership, clients: WaitingClients, run: LegRun, code: grpc.StatusCode, details: str
) -> None:
    """Its Triton is gone, or refused the batch: then every request gets its own answer, as one may be at fault."""
    if code in GOING and await membership.lost(run.backend, details):
        return
    if len(run.clients) == 1 and code is not grpc.StatusCode.UNAVAILABLE:
        if legs.abort(run, details):
            clients.settle(run, [RequestFailed(code, details, reason="BACKEND")])
        return
    for client in run.clients:
        if client not in clients:
            continue
        outcome: Outcome
        try:
            outcome = await _alone(legs, run, client)
        except grpc.aio.AioRpcError as error:
            outcome = RequestFailed(error.code(), error.details() or "", reason="BACKEND")
            if outcome.code in GOING and await membership.lost(run.backend, outcome.details):
                return
        except ScatterError as error:
            outcome = RequestFailed(grpc.StatusCode.INTERNAL, str(error), reason="BACKEND")
        clients.resolve(client.request_id, outcome)
    legs.abort(run, details)


async def _alone(legs: Legs, run: LegRun, client: Client) -> bytes:
    """One of a batch's requests along all its legs, while the worker of the leg that failed is still taken.

    Raises AioRpcError and ScatterError.
    """
    batch, payload = run.effect.batch, legs.payload_of([client.envelope], None)
    answer = b""
    for number in range(len(batch.legs)):
        if number:
            payload.answered(answer)
        stage = legs.stage_of(StartLeg(batch, number, client.envelope.rows))
        metadata = forwarded(client.metadata, legs.hidden())
        answer = await stage.backend.unary(INFER)(payload.request(stage), metadata=metadata)
    return payload.outcomes(answer)[0]
