"""The last output of a container before it failed, so that its failure says more than an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, NamedTuple

from agents.runtime.interface import RuntimeFault

if TYPE_CHECKING:
    from agents.runtime.interface import Key, Runtime

_LINES = 3
_LONGEST = 400
"""Characters.  They go on the log with each failure, so this bounds the records of a crash loop."""
_SEARCHED = 200
"""Lines in which the error is looked for: launchers and C++ print dozens after it."""
_READ = 64 * 1024
_LIMIT_S = 2.0

_ERROR = re.compile(
    r"^(?:\[[^\]]{1,40}\]:? ?)*"  # [rank1]: as PyTorch has it, [1,0]<stderr>: as Open MPI has it
    r"(?:terminate called after throwing .*|what\(\): +\S.*"
    r"|(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Behind)(?:: .*|$))"
)
"""A line that names an error, as the output of Python and C++ ends with one."""
_OF_A_LAUNCHER = re.compile(r"(?:CalledProcessError|ChildFailedError|ProcessRaisedException|SystemExit)\b")
"""Errors of programs that started another one: they say less than what it printed itself."""
_PEER_LOST = re.compile(
    r"connection (?:was )?(?:closed|reset|aborted|refused)"  # gloo, sockets
    r"|connect(?:ion)? .{0,80}(?:refused|timed out)|timed out waiting|broken pipe|socket closed"
    r"|(?:peer|remote) (?:closed|hung up)"
    r"|remote process exited|ncclRemoteError|ncclSystemError|NCCL communicator was aborted|watchdog (?:caught|timeout)"
    r"|failed to recv, got 0 bytes|TCPStore|RendezvousConnectionError|RendezvousTimeoutError|DistNetworkError|DistStoreError"
    r"|lost (?:connection|communication) (?:to|with)|\bLeftBehind\b|EOFError|UnavailableError"
    r"|container of rank \d+ is gone|first container is gone|peer .{0,40}(?:is gone|is dead|died|exited)"
    r"|(?:BrokenPipe|Connection(?:Reset|Aborted|Refused))Error",
    re.IGNORECASE,
)
"""What programs print that lose the connection to another one, in their own words and in those of gloo, NCCL, MPI, TensorFlow
and `dorm.elastic`.  A program that fails for another reason and prints one of these only fails a little later."""


class LastWords(NamedTuple):
    """What a container said before it ended."""

    text: str = ""
    """In one line; "" if it said nothing."""
    peer_lost: bool = False
    """Whether it says that it lost the connection to another container."""


async def last_words(runtime: Runtime, key: Key) -> LastWords:
    """Return what a container said last; nothing if that cannot be read in time."""
    output = b""
    with contextlib.suppress(KeyError, OSError, TimeoutError, RuntimeFault):
        async with (
            asyncio.timeout(_LIMIT_S),
            contextlib.aclosing(runtime.logs(key, follow=False, tail=_SEARCHED)) as pieces,
        ):
            async for piece in pieces:
                output = (output + piece)[-_READ:]
    return understood(output)


def understood(output: bytes) -> LastWords:
    """Return what the end of an output says: its last lines, or the last error before them if they name none."""
    lines = _lines(output)[-_SEARCHED:]
    said = _error_in(lines)
    text = _in_one_line(lines[-_LINES:])
    if said and not any(_error(line) for line in lines[-_LINES:]):
        text = said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"
    return LastWords(text, bool(_PEER_LOST.search(said or text)))


def _lines(output: bytes) -> list[str]:
    """Return the lines that mean something.  Those that only point at a place in the line above, as Python's tracebacks have
    them, do not."""
    lines = [" ".join(line.split()) for line in output.decode(errors="replace").splitlines()]
    return [line for line in lines if line.strip("^~ ")]


def _error(line: str) -> bool:
    return bool(_ERROR.match(line)) and not _OF_A_LAUNCHER.search(line.partition(": ")[0])


def _error_in(lines: list[str]) -> str:
    """Return the last line that names an error, "" for none."""
    return next((line for line in reversed(lines) if _error(line)), "")


def _in_one_line(lines: list[str]) -> str:
    """Return lines as one of at most `_LONGEST` characters, which keeps the last ones."""
    text = " / ".join(lines)
    return text if len(text) <= _LONGEST else "…" + text[1 - _LONGEST :]
