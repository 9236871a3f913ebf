"""The last output of a container before it failed, so that its failure says more than an exit code."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from agents.runtime.interface import RuntimeFault

if TYPE_CHECKING:
    from agents.runtime.interface import Key, Runtime

_LINES = 3
_LONGEST = 400
"""Characters.  They go on the log with each failure, so this bounds the records of a crash loop."""
_READ = 64 * 1024
_LIMIT_S = 2.0


async def last_words(runtime: Runtime, key: Key) -> str:
    """Return the last lines that are not empty, in one line; "" if none can be read in time."""
    output = b""
    with contextlib.suppress(KeyError, OSError, TimeoutError, RuntimeFault):
        async with (
            asyncio.timeout(_LIMIT_S),
            contextlib.aclosing(runtime.logs(key, follow=False, tail=_LINES * 4)) as pieces,
        ):
            async for piece in pieces:
                output = (output + piece)[-_READ:]
    return in_one_line(output)


def in_one_line(output: bytes) -> str:
    """Return the end of an output as one line of at most `_LONGEST` characters, which keeps the last ones.  Lines
    that only point at a place in the line above, as Python's tracebacks have them, mean nothing in one line."""
    lines = [" ".join(line.split()) for line in output.decode(errors="replace").splitlines()]
    text = " / ".join([line for line in lines if line.strip("^~ ")][-_LINES:])
    return text if len(text) <= _LONGEST else "…" + text[1 - _LONGEST :]
