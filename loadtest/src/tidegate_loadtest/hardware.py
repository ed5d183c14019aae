"""Hardware of a server's models, and the reason if it cannot be determined."""

from collections.abc import Sequence
from importlib.util import find_spec

from tritonclient.grpc import model_config_pb2

_HERE = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_here(target: str) -> bool:
    """Return whether HOST:PORT is this machine, so that its hardware is that of the server."""
    return target.rpartition(":")[0] in _HERE


def runs_on_gpu(config: model_config_pb2.ModelConfig) -> bool:
    """Return whether a Triton runs instances of a model on GPUs, by the config that it reports."""
    return any(group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU for group in config.instance_group)


def why_gpus_are_unknown(on_gpu: Sequence[str]) -> str:
    """Explain why the GPUs of these models are unknown, with the remedy; "" if they are known or there are none."""
    if not on_gpu or find_spec("pynvml") is not None:
        return ""
    return (
        f"which GPU {', '.join(on_gpu)} ran on is not recorded, as nvidia-ml-py is not installed: "
        'pip install "tidegate-loadtest[nvml]", and measure again'
    )
