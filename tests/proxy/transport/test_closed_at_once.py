"""A channel of gRPC's core that is closed takes its queue along, in which a thread of ours waits, or is about to."""

import subprocess
import sys

PROGRAM = """
import asyncio, sys, threading, time
from tidegate_proxy.transport.grpcio.channel import Channel

sys.setswitchinterval(1e-6)  # threads come between each other wherever they can

def be_in_the_way():
    while True:
        time.sleep(0)

threading.Thread(target=be_in_the_way, daemon=True).start()

async def main():
    ended = []
    for number in range(100):
        channel = Channel("127.0.0.1:9")
        if number % 3 == 1:
            channel.unary("/a/b", b"", lambda *answered: ended.append(number))
        elif number % 3 == 2:
            await asyncio.sleep(0)
        await channel.close()
    print(len(ended))

asyncio.run(main())
"""


def test_it_crashes_nobody() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "33"), done.stderr
