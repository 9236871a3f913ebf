"""A receiver of webhooks, as a user would write it with aiohttp and the library of Standard Webhooks."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web
from standardwebhooks import Webhook

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Received(NamedTuple):
    """One request."""

    id: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    def verified(self, secret: str) -> dict[str, Any]:
        """Raises WebhookVerificationError."""
        return dict(Webhook(secret).verify(self.body, self.headers))


class Receiver:
    """Use as an async context manager.  `answer` decides the status of each request; by default it is 204."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.answer: Callable[[Received], web.Response] = lambda _: web.Response(status=204)
        self.delay_s = 0.0
        self.hangs: Callable[[Received], bool] = lambda _: False
        """Which requests get no answer as long as this receiver lasts."""
        self._arrived = asyncio.Condition()
        self.url = ""

    async def __aenter__(self) -> Receiver:
        app = web.Application()
        app.router.add_post("/hook", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/hook"
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        received = Received(request.headers["webhook-id"], dict(request.headers), await request.read())
        async with self._arrived:
            self.requests.append(received)
            self._arrived.notify_all()
        await asyncio.sleep(self.delay_s)
        if self.hangs(received):
            await asyncio.Future()
        return self.answer(received)

    async def until(self, condition: Callable[[list[Received]], bool], *, timeout: float = 40.0) -> list[Received]:
        """Wait until this holds of all requests."""
        try:
            async with asyncio.timeout(timeout), self._arrived:
                await self._arrived.wait_for(lambda: condition(self.requests))
        except TimeoutError:
            raise AssertionError(f"never came: {[(one.id, one.event['type']) for one in self.requests]}") from None
        return self.requests

    async def count(self, number: int, *, timeout: float = 40.0) -> list[Received]:
        return await self.until(lambda found: len(found) >= number, timeout=timeout)
