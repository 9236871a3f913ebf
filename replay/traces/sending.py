"""OTLP over HTTP: a batch is sent until the receiver accepts it or rejects it permanently."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

from events.addresses import shown
from events.logger import Logger
from replay.traces.otlp import TraceError, as_protobuf, rejected

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from replay.traces.spans import Span

_PATH = "/v1/traces"
_TIMEOUT_S = 30.0
_AGAIN = (429, 502, 503, 504)
"""Status codes after which the protocol asks for a retry."""
_FIRST_S, _LONGEST_S = 1.0, 30.0
_MOST_READ = 64 * 1024
_log = Logger(__name__)


def traces_url(url: str) -> str:
    """Return where to post: the receiver's address with the protocol's path, unless it has a path of its own.  Raises
    TraceError."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TraceError(
            f"{shown(url)[:100]!r} is not an address of a receiver; write http://HOST:4318", code="traces.url.malformed"
        )
    return url.rstrip("/") + _PATH if parts.path in ("", "/") else url


class Receiver:
    """One receiver of traces; use as an async context manager.  `patience_s` bounds the tries for one batch; None tries
    without end."""

    def __init__(
        self, url: str, cluster: str, *, headers: Mapping[str, str] | None = None, patience_s: float | None = 60.0
    ) -> None:
        self._url = traces_url(url)
        self._cluster = cluster
        self._headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", **(headers or {})}
        self._patience_s = patience_s
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Receiver:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, spans: list[Span]) -> None:
        """Raises TraceError if the receiver refuses them, or takes none in time."""
        body = await asyncio.to_thread(lambda: gzip.compress(as_protobuf(self._cluster, spans), 5))
        loop = asyncio.get_running_loop()
        began, pause = loop.time(), _FIRST_S
        while True:
            wait_s, reason = await self._try(body)
            if not reason:
                return
            wait_s = max(wait_s, pause)
            if self._patience_s is not None and loop.time() + wait_s - began > self._patience_s:
                raise TraceError(f"{shown(self._url)} takes no traces: {reason}", code="traces.receiver.unavailable")
            _log.warning("traces wait for their receiver", url=shown(self._url), reason=reason)
            await asyncio.sleep(wait_s)
            pause = min(2 * pause, _LONGEST_S)

    async def _try(self, body: bytes) -> tuple[float, str]:
        """Return how long the receiver asks us to wait, and why it did not accept the batch; "" if it did.  Raises
        TraceError."""
        try:
            async with self._session.post(self._url, data=body, headers=self._headers, allow_redirects=False) as answer:
                if answer.status == 200:
                    if some := rejected(await answer.content.read(_MOST_READ)):
                        _log.warning("the receiver did not take some spans", what=some)
                    return 0.0, ""
                if answer.status not in _AGAIN:
                    text = f"{self._url} refuses traces with {answer.status}: look at its address and at --header"
                    raise TraceError(text, code="traces.receiver.refused")
                pause = answer.headers.get("Retry-After", "")
                return (min(float(pause), _LONGEST_S) if pause.isascii() and pause.isdigit() else 0.0), str(
                    answer.status
                )
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return 0.0, " ".join(str(error).split()) or "no answer in time"
