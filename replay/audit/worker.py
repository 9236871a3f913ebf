"""One process of an audit: reads slices from its standard input, checks them, writes each result to its standard output.

See `replay.audit.workers`, which starts it.
"""

from __future__ import annotations

import os
import sys

import msgspec

from replay.audit.slices import check
from replay.audit.survey import Slice
from replay.audit.workers import LENGTH


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
