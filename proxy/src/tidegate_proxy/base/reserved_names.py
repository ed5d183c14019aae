"""Names in shared memory that are no client's business: of Tidegate's own regions, and of Triton's Python backend.

A client that could name them would read and overwrite the tensors of others (decision 19).
"""

from typing import Final

OWN_PREFIX: Final = "tidegate-"
"""How the names of Tidegate's regions begin, and of the files that hold them."""
RESERVED_PREFIXES: Final = (OWN_PREFIX, "tidegate_", "triton_python_backend_shm_region_")
"""Tidegate's, then the Python backend's: as an embedded Triton has it named, and as it is by default."""
REGION_PARAMETER: Final = "shared_memory_region"
"""The parameter of a tensor that names the region in which it is."""


def reserved_prefix(name: str) -> str:
    """The reserved prefix of a region's name, or of its key with any slashes and dots in it; "" where it has none."""
    return next((prefix for part in name.split("/") for prefix in RESERVED_PREFIXES if part.startswith(prefix)), "")


def why_not_registered(name: str, key: str = "") -> str:
    """Why no client may register a region of that name and key, in Triton's words where it has them; "": it may."""
    if prefix := reserved_prefix(name):
        return f"cannot register shared memory region '{name}' as the name contains the reserved prefix '{prefix}'"
    if prefix := reserved_prefix(key):
        return (
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix "
            f"'{prefix}'"
        )
    return ""


def why_not_unregistered(name: str) -> str:
    """Why no client may unregister a region of that name; "": it may."""
    if prefix := reserved_prefix(name):
        return f"cannot unregister shared memory region '{name}' as the name contains the reserved prefix '{prefix}'"
    return ""


def why_not_used(name: str, *, refuses: bool) -> str:
    """Why no tensor may be in that region; "": it may. `refuses`: tensors may be in none."""
    if refuses:
        return "tensors in shared memory are not taken here: send them in the request"
    if prefix := reserved_prefix(name):
        return f"no tensor may be in shared memory region '{name}': its name contains the reserved prefix '{prefix}'"
    return ""
