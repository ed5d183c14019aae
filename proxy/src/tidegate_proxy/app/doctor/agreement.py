"""Models that are not the same at every Triton."""

from collections.abc import Iterator

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.app.doctor.facts import Facts
from tidegate_proxy.app.doctor.finding import Finding


def disagreements(facts: Facts) -> Iterator[Finding]:
    """An error where tensors differ, for which requests are scheduled then depends on who has most Tritons."""
    for name, service in facts.services.items():
        if len(service.forms) < 2:
            continue
        only_rows = len({_tensors(form.config) for form in service.forms}) == 1
        places = "; ".join(f"{_form(form.config)} at {', '.join(form.tritons)}" for form in service.forms)
        consequence = (
            "batches are no larger than all of them take"
            if only_rows
            else "requests of the first form are scheduled, others pass to a Triton that takes them"
        )
        yield Finding(
            "warning" if only_rows else "error",
            "disagreement",
            f"model {name}",
            f"it is not the same at every Triton ({places}): {consequence}",
            "load the same everywhere, unless they are being updated just now",
        )


def _tensors(config: model_config_pb2.ModelConfig) -> tuple[str, ...]:
    return tuple(sorted(_described(tensor) for tensor in (*config.input, *config.output)))


def _form(config: model_config_pb2.ModelConfig) -> str:
    tensors = ", ".join(_described(tensor) for tensor in config.input)
    return f"max_batch_size {config.max_batch_size}, {tensors}"


def _described(tensor: object) -> str:
    name, dims = getattr(tensor, "name", ""), getattr(tensor, "dims", ())
    datatype = model_config_pb2.DataType.Name(getattr(tensor, "data_type", 0)).removeprefix("TYPE_")
    return f"{name} {datatype} [{','.join(map(str, dims))}]"
