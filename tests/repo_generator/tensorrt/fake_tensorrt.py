"""A stand-in for NVIDIA's `tensorrt` 10: the names and rules of its Python API that building an engine touches.

It builds nothing. Its engines are JSON, with the tensors of the ONNX file and the optimization profile; like TensorRT
it refuses to build where an open size has no range, and gives None.
"""

import json
from enum import Enum, IntEnum
from typing import Any

import onnx
from onnx import TensorProto


class DataType(Enum):
    FLOAT = TensorProto.FLOAT
    HALF = TensorProto.FLOAT16
    INT32 = TensorProto.INT32
    INT64 = TensorProto.INT64
    BOOL = TensorProto.BOOL


class TensorIOMode(Enum):
    INPUT = "inputs"
    OUTPUT = "outputs"


class CreationFlagOf10(IntEnum):
    EXPLICIT_BATCH = 0


class CreationFlagOf11(IntEnum):
    STRONGLY_TYPED = 1


class BuilderFlagOf10(Enum):
    FP16 = 0
    BF16 = 1
    INT8 = 2


class BuilderFlagOf11(Enum):
    TF32 = 0


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}

    def set_shape(self, input: str, min: tuple[int, ...], opt: tuple[int, ...], max: tuple[int, ...]) -> None:
        assert all(isinstance(size, int) for shape in (min, opt, max) for size in shape)
        self.shapes[input] = (min, opt, max)


class Config:
    def __init__(self) -> None:
        self.profiles: list[Profile] = []
        self.flags: list[str] = []

    def add_optimization_profile(self, profile: Profile) -> int:
        for smallest, usual, largest in profile.shapes.values():
            triples = zip(smallest, usual, largest, strict=True)
            if not all(0 < low <= middle <= high for low, middle, high in triples):
                return -1
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def set_flag(self, flag: Enum) -> None:
        self.flags.append(flag.name)


class Network:
    def __init__(self) -> None:
        self.proto: Any = None


class Parser:
    """Parses ONNX files; those with the operator `Hardmax` it cannot take."""

    def __init__(self, network: Network, logger: object) -> None:
        self._network = network
        self._errors: list[str] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> str:
        return self._errors[index]

    def parse_from_file(self, model: str) -> bool:
        self._network.proto = onnx.load(model)
        self._errors = [
            f"no importer for {n.op_type}" for n in self._network.proto.graph.node if n.op_type == "Hardmax"
        ]
        return not self._errors


class Engine:
    def __init__(self, described: dict[str, Any]) -> None:
        self._tensors: dict[str, dict[str, Any]] = described["tensors"]

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode(self._tensors[name]["mode"])

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[self._tensors[name]["type"]]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name]["shape"])

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        assert profile_index == 0
        return [tuple(shape) for shape in self._tensors[name]["profile"]]


class FakeTensorrt:
    """The module. `version`: 11 has fewer flags. `poison`: called with what an engine is."""

    TensorIOMode = TensorIOMode
    DataType = DataType

    def __init__(self, version: str = "10.9.0", *, gpu: bool = True) -> None:
        self.__version__ = version
        is_10 = int(version.split(".", maxsplit=1)[0]) < 11
        self.BuilderFlag: Any = BuilderFlagOf10 if is_10 else BuilderFlagOf11
        self.NetworkDefinitionCreationFlag: Any = CreationFlagOf10 if is_10 else CreationFlagOf11
        self.gpu = gpu
        self.built: list[dict[str, Any]] = []
        self.poison: Any = lambda tensors: None

    class Logger:
        WARNING = 2

        def __init__(self, severity: int) -> None:
            assert severity == self.WARNING

    def Builder(self, logger: Logger) -> Any:
        if not self.gpu:
            raise TypeError("pybind11::init(): factory function returned nullptr")
        assert isinstance(logger, FakeTensorrt.Logger)
        return _Builder(self)

    OnnxParser = Parser

    def Runtime(self, logger: Logger) -> Any:
        assert isinstance(logger, FakeTensorrt.Logger)
        return _Runtime()


class _Builder:
    def __init__(self, module: FakeTensorrt) -> None:
        self._module = module

    def create_network(self, flags: int) -> Network:
        explicit = self._module.NetworkDefinitionCreationFlag is CreationFlagOf10
        assert flags == (1 << CreationFlagOf10.EXPLICIT_BATCH if explicit else 0)
        return Network()

    def create_builder_config(self) -> Config:
        return Config()

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
        tensors: dict[str, Any] = {}
        graph = network.proto.graph
        shapes = config.profiles[0].shapes if config.profiles else {}
        for mode, values in (("inputs", graph.input), ("outputs", graph.output)):
            for value in values:
                kind = value.type.tensor_type
                shape = [entry.dim_value if entry.HasField("dim_value") else -1 for entry in kind.shape.dim]
                tensor: dict[str, Any] = {"mode": mode, "type": DataType(kind.elem_type).name, "shape": shape}
                if mode == "inputs" and -1 in shape:
                    if value.name not in shapes:
                        return None
                    tensor["profile"] = shapes[value.name]
                    for low, declared in zip(shapes[value.name][0], shape, strict=True):
                        assert declared in (-1, low)
                tensors[value.name] = tensor
        self._module.poison(tensors)
        self._module.built.append({"tensors": tensors, "flags": config.flags})
        return json.dumps({"tensors": tensors}).encode()


class _Runtime:
    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        try:
            return Engine(json.loads(serialized_engine))
        except ValueError:
            return None
