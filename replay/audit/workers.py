"""Checks slices in several processes at once: an audit is bound by computing, and one process uses one core.

A thread of this process is one of the workers.  The others run this module as a program, with this program's Python: slices
go to their standard input, results come back on their standard output.  A worker holds no state worth saving, so it is
killed when the audit ends, for whatever reason.  If the audit itself is killed, its workers read the end of their input and
exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Literal, Self

import msgspec

from replay import ReplayError
from replay.audit.passes import Checked, Slice, check

# --- all workers ------------------------------------------------------------------------------------------------------

WORTH_S = 0.5
LENGTH = 8
"""Bytes of the length before each message, big-endian."""
_CLOSE_S = 5.0
_decode = msgspec.msgpack.Decoder(Checked).decode


class AuditError(ReplayError):
    """A worker process ended; the result of its slice is unknown."""

    code = "audit.failed"


class Workers:
    """Checks a bounded number of slices at once.  Processes take half a second of computing to start, so none is started
    before the audit has run for `WORTH_S`."""

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
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        await asyncio.gather(*(asyncio.wait_for(process.wait(), _CLOSE_S) for process in self._all))

    async def check(self, part: Slice) -> Checked:
        """Return the result of a slice.  Raises AuditError."""
        seat = await self._seats.get()
        if seat == "here":
            try:
                return await _in_a_thread(part)
            finally:
                self._seats.put_nowait(seat)
        process = await self._start() if seat == "new" else seat
        checked = await self._ask(process, part)  # After an error its seat stays empty: the audit ends.
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
            raise AuditError(_ended(await process.wait()), code="audit.process_ended") from None
        return _decode(answer)

    async def _start(self) -> asyncio.subprocess.Process:
        # In its own process group: Ctrl-C is for the audit, which then ends its workers.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "replay.audit.workers",
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
        stop = True  # For a thread that still runs when its caller no longer waits for it.


def _ended(code: int) -> str:
    how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
    return f"a process of the audit {how}; with `--jobs 1` there is only one, which takes less memory"


# --- one worker -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run until the input ends."""
    # The solver sometimes writes a line to standard output, which must not end up in the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    decode = msgspec.msgpack.Decoder(Slice).decode
    try:
        while header := sys.stdin.buffer.read(LENGTH):
            part = sys.stdin.buffer.read(int.from_bytes(header, "big"))
            body = msgspec.msgpack.encode(check(decode(part)))
            answers.write(len(body).to_bytes(LENGTH, "big") + body)
            answers.flush()
    except (BrokenPipeError, msgspec.DecodeError):
        os._exit(1)  # The audit was killed, perhaps within a slice: there is no reader, and nothing to close.


if __name__ == "__main__":
    main()
