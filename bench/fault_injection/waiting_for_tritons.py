"""Asked to stop while it waits for Tritons."""

import signal
import socket
import subprocess
import time

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.rig import Rig
from demo.processes import TIDEGATE

LIMIT_S = 1.0


def run(rig: Rig) -> Result:
    """Its Triton takes connections and says nothing; it would be waited for for five minutes."""
    log = (rig.folder() / "log").open("wb")
    with log, socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [TIDEGATE, "serve", "--triton", address, "--startup-timeout-s", "300", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                silent.settimeout(60)
                silent.accept()[0].close()
                began = time.monotonic()
                process.send_signal(signal.SIGTERM)
                status = process.wait(60)
                took_s = time.monotonic() - began
            finally:
                process.kill()
    return Result(f"ended after {took_s:.2f} s, exit status {status}", took_s <= LIMIT_S and status == 0)


HAZARD = Hazard(
    "waiting_for_tritons",
    "SIGTERM while Tidegate waits for its Tritons",
    "does not end (no figure given)",
    f"ends within {LIMIT_S:g} s",
    run,
)
