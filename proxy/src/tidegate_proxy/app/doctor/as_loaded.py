"""A Triton that is asked once what it serves, and answers as if `load_without_delay` had been carried out."""

from collections.abc import Collection, Mapping, Sequence

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.access.gate import headers_of
from tidegate_proxy.configuration.config import ModelConfig
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.tritons.backend import Backend, LoadedModel


class AsLoaded(Backend):
    """The way to a Triton of which it is only asked what would become of its models."""

    def __init__(self, triton: TritonAddress, told: Mapping[str, ModelConfig]) -> None:
        """`told`: what the configuration says of models. Raises TlsError, RestrictionError."""
        super().__init__(
            triton.grpc,
            http=triton.http,
            metrics=triton.metrics,
            tls=triton.tls,
            worker=triton.worker or "",
            kind=triton.kind or "",
            in_turn=triton.in_turn,
            is_local=triton.is_local,
            headers=headers_of(triton),
        )
        self._without_delay = {name for name, said in told.items() if said.load_without_delay}
        self._known: list[LoadedModel] | None = None

    async def models(self, known: Sequence[LoadedModel] = (), suspects: Collection[str] = ()) -> list[LoadedModel]:
        """All models that were ready when it was first asked. Raises BackendError when it cannot be asked."""
        if self._known is None:
            self._known = [self._as_loaded(model) for model in await super().models(known, suspects)]
        return self._known

    def _as_loaded(self, model: LoadedModel) -> LoadedModel:
        if model.config.name not in self._without_delay:
            return model
        config = model_config_pb2.ModelConfig()
        config.CopyFrom(model.config)
        if config.HasField("dynamic_batching"):
            config.dynamic_batching.max_queue_delay_microseconds = 0
        return LoadedModel(config, model.versions)
