"""Names of shared memory regions that clients may not use: Tidegate's own, and those of Triton's Python backend.

A client that could name them would read and overwrite the tensors of others (decision 19).
"""

from typing import Final

OWN_PREFIX: Final = "tidegate-"
"""Prefix of the names of Tidegate's regions, and of their files."""
RESERVED_PREFIXES: Final = (OWN_PREFIX, "tidegate_", "triton_python_backend_shm_region_")
"""Reserved prefixes: Tidegate's, then the Python backend's, as set for an embedded Triton and by default."""
REGION_PARAMETER: Final = "shared_memory_region"
"""Parameter of a tensor that names its region."""


def reserved_prefix(name: str) -> str:
    """Return the reserved prefix of a region's name or key, ignoring slashes and dots, or ""."""
    return next((prefix for part in name.split("/") for prefix in RESERVED_PREFIXES if part.startswith(prefix)), "")


def why_not_registered(name: str, key: str = "") -> str:
    """Return why no client may register a region of that name and key, in Triton's words if it has them, or ""."""
    if prefix := reserved_prefix(name):
        return f"cannot register shared memory region '{name}' as the name contains the reserved prefix '{prefix}'"
    if prefix := reserved_prefix(key):
        return (
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix "
            f"'{prefix}'"
        )
    return ""


def why_not_unregistered(name: str) -> str:
    """Return why no client may unregister a region of that name, or ""."""
    if prefix := reserved_prefix(name):
        return f"cannot unregister shared memory region '{name}' as the name contains the reserved prefix '{prefix}'"
    return ""


def why_not_used(name: str, *, refuses: bool) -> str:
    """Return why no tensor may be in that region, or "". `refuses`: whether shared memory is forbidden."""
    if refuses:
        return "tensors in shared memory are not taken here: send them in the request"
    if prefix := reserved_prefix(name):
        return f"no tensor may be in shared memory region '{name}': its name contains the reserved prefix '{prefix}'"
    return ""
