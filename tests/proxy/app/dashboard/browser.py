"""A headless chromium that is told what to do through its DevTools protocol."""

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
START_WITHIN_S = 30.0


class Tab:
    """The only page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.said: list[str] = []
        """What its console said that is an error, and exceptions."""

    async def send(self, method: str, **parameters: object) -> dict[str, Any]:
        """Have the browser do something."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = json.loads((await self._socket.receive(timeout=START_WITHIN_S)).data)
            if message.get("method") == "Runtime.exceptionThrown":
                self.said.append(json.dumps(message["params"]["exceptionDetails"]))
            elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.said.append(message["params"]["entry"]["text"])
            if message.get("id") == self._number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    async def open(self, address: str) -> None:
        """Go to an address."""
        for domain in ("Page", "Runtime", "Log"):
            await self.send(f"{domain}.enable")
        await self.send("Page.navigate", url=address)

    async def value(self, expression: str) -> Any:
        """What an expression of the page's script gives."""
        answer = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer}"
        return answer["result"].get("value")

    async def until(self, expression: str, within_s: float = 20.0) -> Any:
        """The value of an expression, as soon as it is true."""
        give_up = asyncio.get_running_loop().time() + within_s
        while not (value := await self.value(expression)):
            assert asyncio.get_running_loop().time() < give_up, f"never true: {expression}; console: {self.said}"
            await asyncio.sleep(0.05)
        return value

    async def press(self, key: str) -> None:
        """Press a key and let it go."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    async def look(self, width: int, height: int, *, dark: bool) -> None:
        """Have a screen of this size, by day or by night."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen as PNG."""
        answer = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))


@asynccontextmanager
async def browser(folder: Path, *flags: str) -> AsyncIterator[Tab]:
    """A browser until the end of the block; its profile is in the folder."""
    assert CHROMIUM, "there is no chromium here"
    given: Sequence[str] = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder / 'profile'}",
        *flags,
        "about:blank",
    )
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(CHROMIUM, *given, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        port = await _port(folder / "profile" / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Tab(socket)
                await socket.send_json({"id": 0, "method": "Browser.close"})
    finally:
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    give_up = asyncio.get_running_loop().time() + START_WITHIN_S
    while not file.exists() or "\n" not in file.read_text():
        assert process.returncode is None, f"chromium ended with {process.returncode}"
        assert asyncio.get_running_loop().time() < give_up, "chromium did not start"
        await asyncio.sleep(0.05)
    return int(file.read_text().splitlines()[0])
