"""A layout of whole GPUs, MIG instances and MPS shares on two nodes."""

from typing import Any


def worker(name: str, gpu: int, *hosts: str, node: str = "a", **part: Any) -> dict[str, Any]:
    device = {"node": node, "id": gpu, "product": "A100", "memory_mib": 40960}
    return {"name": name, "device": device, "hosts": hosts, "device_class": part.pop("kind"), "slice": part}


def mig(profile: str, start: int) -> dict[str, Any]:
    return {"type": "mig", "profile": profile, "start": start}


HALF = mig("3g.20gb", 4)
LAYOUT: dict[str, Any] = {
    "models": [{"name": "m", "slo_ms": 100, "pipelines": [{"partitions": ["m.a", "m.b"], "batch": 4}]}],
    "partitions": [
        {"name": "m.a", "model": "m", "blocks": [0, 2], "bytes_per_row": 16, "latency_ms": {"big": [1] * 4}},
        {"name": "m.b", "model": "m", "blocks": [2, 3], "latency_ms": {"big": [1] * 4, "small": [2] * 4}},
    ],
    "workers": [
        worker("four", 0, "m.a", "m.b", kind="big", **mig("4g.20gb", 0)),
        worker("share/0", 0, "m.b", kind="small", type="mps", percent=70, memory_mib=4096, instance=HALF),
        worker("share/1", 0, "m.b", kind="small", type="mps", percent=45, instance=HALF),
        worker("whole", 1, "m.a", kind="big", type="whole"),
        worker("third", 2, "m.b", kind="small", type="mps", percent=33),
        worker("rest", 2, "m.b", kind="small", type="mps", percent=67),
        *(worker(f"one {n}", 0, "m.b", node="b", kind="small", **mig("1g.5gb", n)) for n in range(6)),
        worker("media", 0, "m.b", node="b", kind="small", **mig("1g.5gb+me", 6)),
        worker("seven", 1, "m.a", node="b", kind="big", **mig("7g.40gb", 0)),
    ],
}
