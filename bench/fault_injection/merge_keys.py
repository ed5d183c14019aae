"""Hazard: parameters whose names imitate those of other requests, which must not share their batches."""

from collections import Counter

from tritonclient.grpc import service_pb2

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import PARAMETERS, Model
from bench.fault_injection.rig import OK, Rig, request, side_by_side, tensor_of

MODEL = "parameters"
CALLERS = 16
TAKES_MS = 3.0


def imitations() -> list[dict[str, str]]:
    """Return different parameters whose concatenated names and values are equal."""
    written = service_pb2.ModelInferRequest()
    written.parameters["a"].string_param = "x"
    value = written.parameters["a"].SerializeToString().hex()
    return [
        {"a": "x", "b": "y"}, {f"a={value};b": "y"}, {"a": "x"}, {"b": "y"}, {}, {"a": "x;b=y"}, {"a=x;b": "y"},
        {"('a', 'x'), ('b'": "y"}, {"a\0x\0b": "y"}, {"ab": "xy"},
    ]  # fmt: skip


def run(rig: Rig) -> Result:
    """Send all requests at once before a busy worker, so that they queue side by side."""
    triton = rig.triton(Model(MODEL, PARAMETERS))
    kinds = imitations()
    direct = rig.client(triton.grpc_address)
    messages = [request(MODEL, [[TAKES_MS, 0]], **parameters) for parameters in kinds]
    expected = [float(tensor_of(direct.call(message)[1])[0, 0]) for message in messages]
    proxy = rig.tidegate(triton, policy="fifs")
    clients = [rig.client(proxy.grpc) for _ in range(CALLERS)]
    requests = 1000 if rig.quick else 10_000

    def ask(number: int) -> str:
        kind = number % len(kinds)
        code, answer = clients[number % CALLERS].call(messages[kind])
        if code is not OK:
            return "failed"
        return "well" if float(tensor_of(answer)[0, 0]) == expected[kind] else "wrong"

    answers = Counter(side_by_side(CALLERS, requests, ask))
    return Result(
        f"{answers['wrong']} wrong, {answers['failed']} failed of {requests}, {len(set(expected))} kinds",
        answers["well"] == requests and len(set(expected)) == len(kinds),
        dict(answers),
    )


HAZARD = Hazard(
    "merge_keys",
    "parameters whose names imitate the merge keys of others",
    "0 wrong, 0 failed",
    run,
)
