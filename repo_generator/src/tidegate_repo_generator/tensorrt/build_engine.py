#!/usr/bin/env python3
"""Build TensorRT engines as `engine.json` describes them, and check them.

It runs on the GPU, MIG instance or MPS share that will run them, with the TensorRT of the Triton that will load them:
an engine works on one kind of device and with one version. It needs Python 3.10 and NVIDIA's `tensorrt` module,
nothing else; the container nvcr.io/nvidia/tensorrt of the release of your Triton has both.

    python3 build_engine.py                       the engine of the engine.json beside it
    python3 build_engine.py a.json b.json         several
    python3 build_engine.py --check               only look whether the engine that is there is the one described
    python3 build_engine.py --force               build, whatever is there

An engine that is there and matches is kept. A new one takes its place once it was checked.
"""

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Spec = dict[str, Any]
_TYPES = {
    "BOOL": "BOOL",
    "UINT8": "UINT8",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "HALF": "FP16",
    "BF16": "BF16",
    "FLOAT": "FP32",
}
"""TensorRT's names of the types of elements, and Triton's."""


class EngineError(Exception):
    """Error: an engine cannot be built, or differs from its description.

    The message says the problem, the place and the remedy.
    """


def read_spec(path: Path) -> Spec:
    """Read the description of an engine. Raises EngineError."""
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: {error}: give an engine.json that `tidegate generate` wrote") from error
    if not isinstance(spec, dict) or spec.get("version") != 1:
        raise EngineError(f"{path} is no engine.json of version 1: generate the model again")
    return spec


def build(spec: Spec, onnx: Path, trt: Any) -> bytes:  # noqa: ANN401
    """Build the engine; return it serialized. Raises EngineError, with TensorRT's message if there is one.

    `onnx`: serialized model; `trt`: the module `tensorrt`.
    """
    logger = trt.Logger(trt.Logger.WARNING)
    try:
        builder = trt.Builder(logger)
    except (TypeError, RuntimeError) as error:
        raise EngineError(f"TensorRT {trt.__version__} finds no GPU here: {error}") from error
    explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)  # the only way since TensorRT 10
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx)):
        errors = "; ".join(str(parser.get_error(number)) for number in range(parser.num_errors))
        raise EngineError(
            f"{onnx}: TensorRT {trt.__version__} cannot take it: {errors}. Use --deploy-target triton-tensorrt, "
            "which leaves to ONNX Runtime what TensorRT lacks"
        )
    config = builder.create_builder_config()
    _set_precision(config, spec["precision"], trt)
    moving = [entry for entry in spec["inputs"] if -1 in entry["shape"]]
    if moving:
        profile = builder.create_optimization_profile()
        for entry in moving:
            profile.set_shape(entry["name"], tuple(entry["min"]), tuple(entry["opt"]), tuple(entry["max"]))
        if config.add_optimization_profile(profile) < 0:
            sizes = ", ".join(f"{each['name']} {each['min']} to {each['max']}" for each in moving)
            raise EngineError(f"{onnx}: TensorRT refuses the sizes {sizes}: generate the model again with other ones")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise EngineError(f"{onnx}: TensorRT {trt.__version__} built no engine: what it said stands above")
    return bytes(plan)


def _set_precision(config: Any, precision: str, trt: Any) -> None:  # noqa: ANN401
    if precision == "fp32":
        return
    flag = getattr(trt.BuilderFlag, precision.upper(), None)
    if flag is None:
        raise EngineError(
            f"TensorRT {trt.__version__} takes the precision from the model itself and has no {precision}: convert the "
            "ONNX file (NVIDIA ModelOpt, onnxconverter-common) and generate with --precision fp32, or use TensorRT 10"
        )
    config.set_flag(flag)


def differences(plan: bytes, spec: Spec, trt: Any) -> list[str]:  # noqa: ANN401
    """Return the differences between an engine and its description; empty if it matches.

    `plan`: serialized engine; `trt`: the module `tensorrt`.
    """
    engine = trt.Runtime(trt.Logger(trt.Logger.WARNING)).deserialize_cuda_engine(plan)
    if engine is None:
        return [f"TensorRT {trt.__version__} does not load it on this device"]
    modes = {trt.TensorIOMode.INPUT: "input", trt.TensorIOMode.OUTPUT: "output"}
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    there = {name: modes[engine.get_tensor_mode(name)] for name in names}
    found = []
    for mode in ("input", "output"):
        wanted = {entry["name"]: entry for entry in spec[mode + "s"]}
        found += [f"it has the {mode} {name!r} besides" for name in there if there[name] == mode and name not in wanted]
        for name, entry in wanted.items():
            if there.get(name) != mode:
                found.append(f"it has no {mode} {name!r}")
                continue
            kind = engine.get_tensor_dtype(name).name
            if _TYPES.get(kind, kind) != entry["data_type"]:
                found.append(f"{mode} {name!r} is {_TYPES.get(kind, kind)}, not {entry['data_type']}")
            shape = list(engine.get_tensor_shape(name))
            found += (differing := _differing_shape(mode, entry, shape))
            if mode == "input" and not differing:
                moves = -1 in shape
                sizes = [list(each) for each in engine.get_tensor_profile_shape(name, 0)] if moves else [shape] * 3
                found += _differing_sizes(entry, sizes)
    return found


def _differing_shape(mode: str, entry: Spec, shape: list[int]) -> list[str]:
    """Triton refuses other sizes; where either side leaves one open (-1) it does not look."""
    wanted = entry["shape"]
    same = len(shape) == len(wanted) and all(
        -1 in (size, expected) or size == expected for size, expected in zip(shape, wanted, strict=True)
    )
    return [] if same else [f"{mode} {entry['name']!r} is {shape}, not {wanted}"]


def _differing_sizes(entry: Spec, sizes: list[list[int]]) -> list[str]:
    smallest, largest = sizes[0], sizes[2]
    covers = all(
        low <= wanted_low and high >= wanted_high
        for low, high, wanted_low, wanted_high in zip(smallest, largest, entry["min"], entry["max"], strict=True)
    )
    wanted = f"{entry['min']} to {entry['max']}"
    return [] if covers else [f"input {entry['name']!r} takes {smallest} to {largest}, not {wanted}"]


def bring_about(path: Path, trt: Any, *, force: bool, only_check: bool) -> str:  # noqa: ANN401
    """Build or check the engine of one `engine.json`; return a sentence that describes it. Raises EngineError.

    `trt`: the module `tensorrt`; `force`: build even if the engine matches; `only_check`: do not build.
    """
    spec = read_spec(path)
    onnx, plan = path.parent / spec["onnx"], path.parent / spec["plan"]
    wrong = ["it is not there"] if not plan.is_file() else [] if force else differences(plan.read_bytes(), spec, trt)
    if only_check and wrong:
        raise EngineError(f"{plan}: {'; '.join(wrong)}: build it with {Path(__file__).name} {path}")
    if not wrong and not force:
        return f"{plan} is as described"
    if not onnx.is_file():
        raise EngineError(f"{onnx}: there is no such file: copy all that `tidegate generate` wrote")
    built = build(spec, onnx, trt)
    if wrong := differences(built, spec, trt):
        raise EngineError(
            f"{onnx}: the engine that TensorRT {trt.__version__} built is not what its configuration says: "
            f"{'; '.join(wrong)}. Nothing was written"
        )
    plan.parent.mkdir(parents=True, exist_ok=True)
    # Containers that share the folder may build it at once, each as the process of the same number.
    with tempfile.TemporaryDirectory(dir=plan.parent, prefix=f".{plan.name}.") as workshop:
        fresh = Path(workshop, plan.name)
        fresh.write_bytes(built)
        fresh.replace(plan)
    return f"{plan} was built for {spec['precision']}, {len(built)} bytes"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build or check the engines named on the command line; return 0, or 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("specs", nargs="*", type=Path, metavar="engine.json")
    parser.add_argument("--check", action="store_true", help="build nothing")
    parser.add_argument("--force", action="store_true", help="build what is there, too")
    options = parser.parse_args(arguments)
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError as error:
        sys.stderr.write(
            f"error: {error}: run this in the container nvcr.io/nvidia/tensorrt of the release of your Triton, or "
            "`pip install tensorrt` in the version of that Triton's\n"
        )
        return 1
    for path in options.specs or [Path(__file__).resolve().parent / "engine.json"]:
        try:
            message = bring_about(path, trt, force=options.force, only_check=options.check)
        except (EngineError, OSError) as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        sys.stdout.write(f"{message}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
