"""gevent is Locust's own: neither the other senders nor the proxy nor pytest run in a process that it has patched."""

import subprocess
import sys

import pytest

OTHERS = """
import sys
from importlib import import_module
from pathlib import Path
import tidegate_loadtest, tidegate_proxy
for package in (tidegate_loadtest, tidegate_proxy):
    folder = Path(package.__file__).parent
    for file in folder.rglob("*.py"):
        parts = file.relative_to(folder.parent).with_suffix("").parts
        if "locust" not in parts and parts[-1] not in ("__main__", "__init__"):
            import_module(".".join(parts))
assert "tidegate_loadtest.live" in sys.modules and "tidegate_proxy.app.serve" in sys.modules
assert not [name for name in sys.modules if name.partition(".")[0] in ("gevent", "locust")]
"""
LOCUSTS = """
import tidegate_loadtest.locust.users
from gevent import monkey
assert monkey.is_module_patched("socket") and monkey.is_module_patched("threading")
"""


@pytest.mark.parametrize(
    "program", [pytest.param(OTHERS, id="others", marks=pytest.mark.slow), pytest.param(LOCUSTS, id="Locust's")]
)
def test_only_locusts_process_is_patched(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_pytest_is_not_patched() -> None:
    assert "locust" not in sys.modules
    monkey = sys.modules.get("gevent.monkey")  # tritonclient.http, which other tests use, imports gevent as a library
    assert monkey is None or not monkey.is_module_patched("socket")
