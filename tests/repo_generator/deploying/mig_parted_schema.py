"""What nvidia-mig-parted takes of a configuration file, as its documentation and its reader (api/spec/v1) have it."""

from typing import Any

_PROFILE = r"^([1-9]\d*c\.)?[1-9]\d*g\.[1-9]\d*gb(\+[A-Za-z][A-Za-z0-9]*(,[A-Za-z][A-Za-z0-9]*)*)?$"
_ENTRY: dict[str, Any] = {
    "type": "object",
    "required": ["devices", "mig-enabled"],
    "additionalProperties": False,
    "properties": {
        "device-filter": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "devices": {
            "anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}]
        },
        "mig-enabled": {"type": "boolean"},
        "mig-devices": {
            "type": "object",
            "patternProperties": {_PROFILE: {"type": "integer", "minimum": 0}},
            "additionalProperties": False,
        },
    },
    "if": {"properties": {"mig-enabled": {"const": True}}},
    "then": {"required": ["mig-devices"]},
    "else": {"properties": {"mig-devices": {"maxProperties": 0}}},
}
MIG_PARTED: dict[str, Any] = {
    "type": "object",
    "required": ["version", "mig-configs"],
    "additionalProperties": False,
    "properties": {
        "version": {"const": "v1"},
        "mig-configs": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": "array", "minItems": 1, "items": _ENTRY},
        },
    },
}
