"""On a fresh clone each worker rewrites the assertions of its share of the test modules, not each those of all.

pytest keeps what it has rewritten, and four workers that begin together would all do the same: four seconds of a core.
"""

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.assertion.rewrite import assertstate_key


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Rewrite what no run before this one has; what has changed since is the import's to see."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    number, state = int(worker["workerid"].removeprefix("gw")), session.config.stash[assertstate_key]
    asked_for = [Path(argument.partition("::")[0]).absolute() for argument in session.config.args]
    paths = {path for given in asked_for for path in (given.rglob("test_*.py") if given.is_dir() else [given])}
    for path in sorted(paths)[number :: worker["workercount"]]:
        kept = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
        if not kept.exists() and rewrite.try_makedirs(kept.parent):
            written, code = rewrite._rewrite_test(path, session.config)
            rewrite._write_pyc(state, code, written, kept)
