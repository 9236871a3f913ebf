"""Slices checked by several processes at once: an audit is all computing, and one process has one core.

A thread of this process is one of the workers.  The others are this program's Python with `replay.audit.worker`: slices go
in by its standard input, what came of them comes back by its standard output.  It holds nothing that anybody would miss,
so it is killed when the audit ends, however that ends; and should the audit itself be killed, its workers read the end of
their input and leave.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Literal, Self

import msgspec

from replay import ReplayError
from replay.audit.slices import Checked, check

if TYPE_CHECKING:
    from replay.audit.survey import Slice

WORTH_S = 0.5
LENGTH = 8
"""Bytes before each message, its length, big-endian."""
_CLOSE_S = 5.0
_decode = msgspec.msgpack.Decoder(Checked).decode


class AuditError(ReplayError):
    """A worker process ended; nothing is known of what it was to check."""


class Workers:
    """At most so many slices at once.  Processes take half a second of computing to start, so there are none before there
    has been enough to do for `WORTH_S`."""

    def __init__(self, jobs: int) -> None:
        self._others = max(0, jobs - 1)
        self._seats: asyncio.Queue[asyncio.subprocess.Process | Literal["here", "new"]] = asyncio.Queue()
        self._all: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        self._seats.put_nowait("here")
        self._more = asyncio.get_running_loop().call_later(WORTH_S, self._add_seats)
        return self

    def _add_seats(self) -> None:
        for _ in range(self._others):
            self._seats.put_nowait("new")

    async def __aexit__(self, *_: object) -> None:
        self._more.cancel()
        for process in self._all:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(asyncio.wait_for(process.wait(), _CLOSE_S) for process in self._all))

    async def check(self, part: Slice) -> Checked:
        """What comes of a slice.  Raises AuditError."""
        seat = await self._seats.get()
        if seat == "here":
            try:
                return await _in_a_thread(part)
            finally:
                self._seats.put_nowait(seat)
        process = await self._start() if seat == "new" else seat
        checked = await self._ask(process, part)  # After any error its place stays empty: the audit ends.
        self._seats.put_nowait(process)
        return checked

    async def _ask(self, process: asyncio.subprocess.Process, part: Slice) -> Checked:
        assert process.stdin is not None
        assert process.stdout is not None
        body = await asyncio.to_thread(msgspec.msgpack.encode, part)
        try:
            process.stdin.write(len(body).to_bytes(LENGTH, "big"))
            process.stdin.write(body)
            await process.stdin.drain()
            length = int.from_bytes(await process.stdout.readexactly(LENGTH), "big")
            answer = await process.stdout.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise AuditError(_ended(await process.wait())) from None
        return _decode(answer)

    async def _start(self) -> asyncio.subprocess.Process:
        # In a group of its own: Ctrl-C is for the audit, which then ends its workers.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "replay.audit.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            process_group=0,
        )
        self._all.append(process)
        return process


async def _in_a_thread(part: Slice) -> Checked:
    stop = False
    try:
        return await asyncio.to_thread(check, part, lambda: stop)
    finally:
        stop = True  # For a thread that goes on when nobody waits for it any more.


def _ended(code: int) -> str:
    how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
    return f"a process of the audit {how}; with `--jobs 1` there is only one, which takes less memory"
