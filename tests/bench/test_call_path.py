"""How many files one request crosses, live: a reader of its way opens as many."""

import importlib.util
import sys

import pytest

from bench.call_path import live
from tidegate_proxy.tritons.embedded.install import SUPPORTED_PYTHONS

MOST_FILES, MOST_OF_THE_PROXY = 45, 23
"""The aim of the layout, and what was reached."""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info[:2] not in SUPPORTED_PYTHONS or importlib.util.find_spec("pytriton") is None,
    reason="needs nvidia-pytriton on CPython 3.11 or 3.12",
)
def test_a_request_crosses_no_more_files_than_it_did() -> None:
    crossed = live()
    files = {file for of in crossed.values() for file in of}
    assert {"tidegate_proxy/service/inference.py", "tidegate_baselines/fifs.py"} <= files, "it was seen"
    assert len(files) <= MOST_FILES, sorted(files)
    assert sum(file.startswith("tidegate_proxy/") for file in files) <= MOST_OF_THE_PROXY, sorted(files)
