"""Hazard: a client uses the shared memory in which Tidegate passes tensors of other clients to Triton."""

import json
import threading
from collections import Counter

import numpy as np
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Client, Rig, over_http, request_of, side_by_side, tensor_of
from bench.proxy_process import ProxyProcess
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.shared_memory import REGION_PREFIX

MODEL = "told"
FLOATS = 50_000
"""FP32 values of a request passed in shared memory: 200 kB."""


class Attacker:
    """A client that knows the names of regions, which it reads from Triton itself."""

    def __init__(self, triton: EmbeddedTriton, proxy: ProxyProcess, client: Client) -> None:
        self.done: Counter[str] = Counter()
        """What was tried, and what of that succeeded."""
        self._triton, self._proxy, self._client = triton, proxy, client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stop the attack and wait for its thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with triton_grpc.InferenceServerClient(self._triton.grpc_address) as direct:
            while not self._stop.is_set():
                regions = direct.get_system_shared_memory_status().regions
                ours = [name for name in regions if name.startswith(REGION_PREFIX)]
                self.done["regions seen"] = max(self.done["regions seen"], len(ours))
                for name in (*ours, *(f"{REGION_PREFIX}{self._triton.pid}-{number}" for number in range(2))):
                    self._try(name)

    def _try(self, name: str) -> None:
        for output in (False, True):
            kind = "written" if output else "read"
            message = service_pb2.ModelInferRequest(model_name=MODEL)
            message.inputs.add(name="X", datatype="FP32", shape=[1, 2])
            tensor = message.inputs[0]
            if output:
                message.raw_input_contents.append(bytes(8))
                tensor = message.outputs.add(name="Y")
            tensor.parameters["shared_memory_region"].string_param = name
            tensor.parameters["shared_memory_byte_size"].int64_param = 8
            self._count(kind, self._client.call(message)[0] is OK)
            place = {"parameters": {"shared_memory_region": name, "shared_memory_byte_size": 8}}
            given = {"name": "X", "datatype": "FP32", "shape": [1, 2]}
            body = {"inputs": [{**given, "data": [0, 0]}], "outputs": [{"name": "Y", **place}]}
            if not output:
                body = {"inputs": [{**given, **place}]}
            path = f"/v2/models/{MODEL}/infer"
            self._count(kind, over_http(self._proxy.http, path, json.dumps(body).encode())[0] == 200)
        taken = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        self._count("taken away", self._client.call(taken, "SystemSharedMemoryUnregister")[0] is OK)

    def _count(self, kind: str, success: bool) -> None:
        self.done["tried"] += 1
        self.done[kind] += success


def run(rig: Rig) -> Result:
    """Run clients with large tensors beside an attacker that reads and writes their regions."""
    triton = rig.triton(Model(MODEL))
    proxy = rig.tidegate(triton)
    victims = [rig.client(proxy.grpc) for _ in range(4)]
    attacker = Attacker(triton, proxy, rig.client(proxy.grpc))

    def ask(number: int) -> str:
        array = np.full((1, FLOATS), number + 2, np.float32)
        array[0, 0] = 1.0
        code, answer = victims[number % len(victims)].call(request_of(MODEL, array))
        if code is not OK:
            return "failed"
        return "well" if np.array_equal(tensor_of(answer), array) else "wrong"

    requests = 240 if rig.quick else 2000
    try:
        answers = Counter(side_by_side(len(victims), requests, ask))
    finally:
        attacker.stop()
    done = attacker.done
    foreign = done["read"] + done["written"] + done["taken away"]
    return Result(
        f"{foreign} of {done['tried']} attempts on {done['regions seen']} regions; "
        f"{answers['wrong']} wrong and {answers['failed']} failed of {requests} answers of others",
        foreign == 0 and answers["well"] == requests and done["regions seen"] > 0,
        {"attempts": dict(done), "answers": dict(answers)},
    )


HAZARD = Hazard(
    "foreign_memory",
    "a client reads, overwrites and takes away the shared memory of others' tensors",
    "0 foreign reads and writes, all answers right",
    run,
)
