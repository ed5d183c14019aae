"""Strings as YAML scalars, for lines of a configuration that are printed."""

import json
import re
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_YAML_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def yaml_scalar(text: str) -> str:
    """Return a string as YAML writes it, quoted where it could be read as something else."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS else json.dumps(text)
