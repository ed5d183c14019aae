"""Whoever holds the event loop is named on stderr, while it is held."""

import subprocess
import sys

PROGRAM = """
import asyncio, sys
from tidegate_proxy.base.watchdog import Watchdog

def a_policy_that_never_returns():
    while True:
        pass

async def main():
    watchdog = Watchdog(lambda: 0.2)
    if "first close" in sys.argv:
        watchdog.close()
    await asyncio.sleep(1)
    print("not held", flush=True)
    a_policy_that_never_returns()

asyncio.run(main())
"""


def test_who_holds_the_loop_is_named_and_a_task_that_gives_it_back_on_time_is_not() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "not held\n"
        said = iter(process.stderr.readline, "")
        assert next(said).startswith("Timeout (0:00:00.2")
        assert any("a_policy_that_never_returns" in line for line in said)
        process.kill()


def test_nothing_is_watched_any_more_once_it_is_closed() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "first close"], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "not held\n"
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
        assert process.stderr
        assert process.stderr.read() == ""
