"""Routes about split models, which no Triton has by their name; with a layout clients see no other models."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict

from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.servers.http.forward import index_json
from tidegate_proxy.servers.http.infer_response import JSON, error, failure
from tidegate_proxy.servers.http.interface import Answer, Call, Handler
from tidegate_proxy.service.control import Control
from tidegate_proxy.tritons.catalog import Directory
from tidegate_proxy.tritons.split_models import VERSION, SplitModel


def split_handlers(directory: Directory, control: Control) -> Mapping[tuple[str, str], Handler]:
    """Metadata, config, readiness and the index, as gRPC has them."""

    def about_a_model(answer_of: Callable[[SplitModel], bytes]) -> Handler:
        async def handler(call: Call) -> Answer:
            split = directory.catalog.split.get(call.route.model)
            if split is None or call.route.version not in ("", VERSION):
                return error(400, f"Request for unknown model: '{call.route.model}' is not found")
            return Answer(200, [*JSON], answer_of(split))

        return handler

    async def index(_call: Call) -> Answer:
        try:
            models = await control.repository_index()
        except RequestFailed as failed:
            return failure(failed)
        return Answer(200, [*JSON], index_json(models))

    return {
        ("GET", "/v2/models/{model}"): about_a_model(lambda split: _dumped(_metadata(split))),
        ("GET", "/v2/models/{model}/config"): about_a_model(lambda split: _dumped(_plain(split.config))),
        ("GET", "/v2/models/{model}/ready"): about_a_model(lambda _split: b""),
        ("POST", "/v2/repository/index"): index,
    }


def _metadata(split: SplitModel) -> dict[str, Any]:
    metadata = split.metadata
    return {
        "name": metadata.name,
        "versions": list(metadata.versions),
        "platform": metadata.platform,
        **{
            which: [
                {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
                for tensor in getattr(metadata, which)
            ]
            for which in ("inputs", "outputs")
        },
    }


def _plain(message: Any) -> dict[str, Any]:  # noqa: ANN401 - protobuf messages share no type
    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


def _dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
