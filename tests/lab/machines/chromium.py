"""A real headless Chromium, driven over the DevTools protocol: what people will see of a page is what is asked of it here."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TIMEOUT_S = 30.0


def chromium() -> str | None:
    """The program, None where there is none."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Page:
    """One tab.  Keeps what its console said and every address that it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._count = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.errors: list[str] = []
        self.requests: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._note(said["method"], said["params"])
        for waiting in self._answers.values():
            waiting.set_exception(ConnectionError("the browser has gone"))

    def _note(self, method: str, about: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(one.get("value", one)) for one in about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
        elif method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    async def ask(self, method: str, **about: Any) -> dict[str, Any]:
        """One command of the protocol and its result."""
        self._count += 1
        answer = self._answers[self._count] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._count, "method": method, "params": about})
        said = await asyncio.wait_for(answer, TIMEOUT_S)
        if "error" in said:
            raise RuntimeError(f"{method}: {said['error']['message']}")
        result: dict[str, Any] = said["result"]
        return result

    async def open(self, file: Path) -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.ask(f"{domain}.enable")
        self._loaded.clear()
        await self.ask("Page.navigate", url=file.absolute().as_uri())
        await asyncio.wait_for(self._loaded.wait(), TIMEOUT_S)

    async def run(self, script: str) -> Any:
        """What an expression gives; a promise is awaited.  Raises RuntimeError with what it throws."""
        result = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", "it threw something"))
        return result["result"].get("value")

    async def wait_for(self, script: str) -> Any:
        """Until an expression is true."""
        watch = f"""new Promise(done => {{
            const look = () => {{ const found = {script}; found ? done(found) : requestAnimationFrame(look); }}; look();
        }})"""
        return await self.run(watch)

    async def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """`mouseMoved`, `mousePressed`, `mouseReleased`, as a hand would."""
        await self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    async def drag(self, x0: float, x1: float, y: float) -> None:
        """With the left button."""
        button = {"button": "left", "buttons": 1, "clickCount": 1}
        await self.mouse("mouseMoved", x0, y)
        await self.mouse("mousePressed", x0, y, **button)
        for part in (0.3, 0.7, 1.0):
            await self.mouse("mouseMoved", x0 + (x1 - x0) * part, y, button="left", buttons=1)
        await self.mouse("mouseReleased", x1, y, button="left", clickCount=1)

    async def screenshot(self, file: Path, *, whole: bool = False) -> None:
        shot = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextlib.asynccontextmanager
async def browser(home: Path, *, width: int = 1400, height: int = 1000, dark: bool = False) -> AsyncIterator[Page]:
    """A tab in a browser of its own, that ends with it."""
    program = chromium()
    assert program is not None
    words = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
        "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--hide-scrollbars",
        "--remote-debugging-port=0", f"--user-data-dir={home}", f"--window-size={width},{height}", "about:blank",
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        program, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    quiet = None
    try:
        port = await asyncio.wait_for(_port(process.stderr), TIMEOUT_S)
        quiet = asyncio.create_task(_drain(process.stderr))
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as tabs:
                tab = next(one for one in await tabs.json() if one["type"] == "page")
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                try:
                    await page.ask(
                        "Emulation.setDeviceMetricsOverride",
                        width=width,
                        height=height,
                        deviceScaleFactor=1,
                        mobile=False,
                    )
                    scheme = "dark" if dark else "light"
                    await page.ask(
                        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
                    )
                    yield page
                finally:
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if quiet is not None:
            await quiet


async def _port(said: asyncio.StreamReader) -> int:
    """Where it listens, as it says itself."""
    async for line in said:
        if line.startswith(b"DevTools listening on ws://"):
            return int(line.split(b"/")[2].rsplit(b":", 1)[1])
    raise AssertionError("the browser did not start")


async def _drain(said: asyncio.StreamReader) -> None:
    """A full pipe would stop it."""
    while await said.read(65_536):
        pass
