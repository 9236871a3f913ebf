"""Reads, submissions and streams, each kind from its own process."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from dorm.bench import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator

READS = (
    "/v1/apps?limit=50", "/v1/nodes?limit=50", "/v1/view", "/v1/events?limit=50", "/v1/policy", "/v1/masters",
    "/v1/decisions?limit=5", "/v1/health",
)  # fmt: skip
_AT = re.compile(rb'^data: \{"position":"[0-9.]+","at":"([^"]+)"', re.MULTILINE)
_SAMPLED = 100
"""One in this many readers measures times; the others only count."""
_OPENING_S = 60.0
_SETTLING_S = 0.5
_EACH_S = 0.25
_AT_ONCE = 1 << 16
_REQUEST = b"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
_EVENT = b"\nevent: event"
_NICE = 5
"""Real callers are on other machines, so their computing must not slow down the measured processes."""


class Took(NamedTuple):
    """What callers measured."""

    seconds: list[float]
    cpu_s: float
    """CPU seconds of their own process."""


class Lags(NamedTuple):
    """Results of the readers of a stream."""

    seconds: list[float]
    fewest: int
    """The fewest events that any reader got."""
    most: int
    ended: int
    """Streams that the API ended."""
    cpu_s: float
    """CPU seconds of the readers' own process since then."""


def reads(url: str, per_s: float, seconds: float) -> Iterator[Took]:
    """Yield the seconds that each read took, from when it was due, at this many reads per second."""
    os.nice(_NICE)
    yield Took(asyncio.run(_reads(url, per_s, seconds)), time.process_time())


async def _reads(url: str, per_s: float, seconds: float) -> list[float]:
    lags: list[float] = []
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(base_url=url, connector=aiohttp.TCPConnector(limit=64)) as session:

        async def one(path: str, due: float) -> None:
            async with session.get(path) as answer:
                await answer.read()
                if answer.status != 200:
                    raise BenchError(f"{path} was answered with {answer.status}", code="bench.wrong_answer")
            lags.append(loop.time() - due)

        for path in READS:
            await one(path, loop.time())
        lags.clear()
        async with asyncio.TaskGroup() as tasks:
            due = loop.time()
            for number in range(int(per_s * seconds)):
                tasks.create_task(one(READS[number % len(READS)], due))
                due += 1 / per_s
                await asyncio.sleep(max(0.0, due - loop.time()))
    return lags


def submissions(url: str, per_s: float, seconds: float) -> Iterator[Took]:
    """Yield the seconds from each submission to the master's answer, at this many submissions per second."""
    os.nice(_NICE)
    yield Took(asyncio.run(_submissions(url, per_s, seconds)), time.process_time())


async def _submissions(url: str, per_s: float, seconds: float) -> list[float]:
    times: list[float] = []
    async with aiohttp.ClientSession(base_url=url) as session:
        for number in range(int(per_s * seconds)):
            began = time.perf_counter()
            spec: dict[str, Any] = {"name": f"sent-{number}", "command": ["work"], "demand": {"cpu": 400}}
            # It requests more than any node has, so it is refused and leaves nothing behind.
            async with session.post("/v1/apps", json=spec) as answer:
                await answer.read()
                if answer.status != 409:
                    raise BenchError(f"a submission was answered with {answer.status}", code="bench.wrong_answer")
            took = time.perf_counter() - began
            times.append(took)
            await asyncio.sleep(max(0.0, 1 / per_s - took))
    return times


def streams(url: str, readers: int, seconds: float) -> Iterator[int | Lags]:
    """Yield how many readers are connected, then what they saw in this time."""
    _give_way()
    loop = asyncio.new_event_loop()
    try:
        measuring, others = loop.run_until_complete(_open(url, readers))
        opened: list[_Reader | _Drained] = [*measuring, *others]
        loop.run_until_complete(_drain(others, _SETTLING_S))  # They have caught up.
        yield len(opened)
        cpu_s = time.process_time()
        for reader in opened:
            reader.begin()
        loop.run_until_complete(_drain(others, seconds))
        counts = [reader.count for reader in opened]
        lags = [lag for reader in measuring for lag in reader.lags]
        yield Lags(lags, min(counts), max(counts), sum(reader.over for reader in opened), time.process_time() - cpu_s)
        for reader in opened:
            reader.close()
    finally:
        loop.close()


def _give_way() -> None:
    """Compute only where nothing else wants a processor, as if it were another machine's."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


async def _open(url: str, readers: int) -> tuple[list[_Reader], list[_Drained]]:
    address = urlsplit(url).hostname or "", urlsplit(url).port or 0
    loop = asyncio.get_running_loop()
    measuring: list[_Reader] = []
    others: list[_Drained] = []
    async with asyncio.timeout(_OPENING_S):
        for number in range(readers):
            if number % _SAMPLED == 0:
                _, reader = await loop.create_connection(_Reader, *address)
                measuring.append(reader)
            else:
                other = socket.socket()
                other.setblocking(False)
                await loop.sock_connect(other, address)
                await loop.sock_sendall(other, _REQUEST)
                others.append(_Drained(other))
        for reader in measuring:
            await reader.opened.wait()
        while not all(other.opened for other in others):
            await _drain(others, _EACH_S)
    return measuring, others


async def _drain(others: list[_Drained], seconds: float) -> None:
    """Take what comes for these readers, for so long."""
    ends = asyncio.get_running_loop().time() + seconds
    while (left := ends - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(min(_EACH_S, left))
        for other in others:
            other.take()


class _Drained:
    """A stream whose events are only counted, a few times a second: on this machine most readers cost next to nothing."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.opened = self.over = False
        self.begin()

    def begin(self) -> None:
        self.count = 0

    def take(self) -> None:
        try:
            data = self._socket.recv(_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.opened, self.over = True, self.over or not data
        self.count += data.count(_EVENT)

    def close(self) -> None:
        self._socket.close()


class _Reader(asyncio.Protocol):
    """A stream whose events are looked at as they come."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self.opened = asyncio.Event()
        self.begin()
        self.over = False

    def begin(self) -> None:
        self.count = 0
        self.lags: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(_REQUEST)

    def data_received(self, data: bytes) -> None:
        self.opened.set()
        self.count += data.count(_EVENT)
        now = time.time()
        self.lags += [now - _seconds(stamp) for stamp in _AT.findall(data)]

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self.opened.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _seconds(text: bytes) -> float:
    """Return the seconds of a log time."""
    whole, _, rest = text.decode().removesuffix("Z").partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{rest or 0}")


def moments(url: str, seqs: list[int]) -> Iterator[list[float]]:
    """Yield how long each of these moments took, one after the other, in seconds."""
    os.nice(_NICE)
    yield asyncio.run(_moments(url, seqs))


async def _moments(url: str, seqs: list[int]) -> list[float]:
    times: list[float] = []
    async with aiohttp.ClientSession(base_url=url) as session:
        for seq in seqs:
            began = time.perf_counter()
            async with session.get(f"/v1/view?at={seq}") as answer:
                await answer.read()
                if answer.status != 200:
                    raise BenchError(f"moment {seq} was answered with {answer.status}", code="bench.wrong_answer")
            times.append(time.perf_counter() - began)
    return times
