"""What Docker Compose takes of the fields that we write, as the Compose Specification has them (schema of compose-go).

A field that we do not write is refused, though the specification may have it.
"""

from typing import Any

_STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
_DEVICE: dict[str, Any] = {
    "type": "object",
    "required": ["capabilities"],
    "additionalProperties": False,
    # `count` is left out: with `device_ids` it is refused.
    "properties": {"driver": {"type": "string"}, "device_ids": _STRINGS | {"minItems": 1}, "capabilities": _STRINGS},
}


def _only(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": sorted(properties),
        "properties": properties,
    }


_SERVICE: dict[str, Any] = {
    "type": "object",
    "required": ["image"],
    "additionalProperties": False,
    "properties": {
        "image": {"type": "string"},
        "command": {"type": "array", "items": {"type": "string"}},
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "network_mode": {"type": "string"},
        "ipc": {"type": "string"},
        "user": {"type": "string"},
        "profiles": _STRINGS,
        "environment": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
        "volumes": {"type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": "^[^:]+(:[^:]+)+$"}},
        "deploy": _only(resources=_only(reservations=_only(devices={"type": "array", "items": _DEVICE}))),
    },
}
COMPOSE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "services": {
            "type": "object",
            "minProperties": 1,
            "patternProperties": {"^[a-zA-Z0-9._-]+$": _SERVICE},
            "additionalProperties": False,
        }
    },
}
