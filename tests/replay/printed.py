"""Prints the results of replay for an archive, for a separate process: `python -m tests.replay.printed LOG.dorm`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from dorm.core.state import digest
from events.archive.segments import open_archive
from replay.audit.audit import verify
from replay.moments import AtSequence
from replay.travel import state_at


async def main(path: Path) -> None:
    log = await open_archive(path)
    for seq in range(await log.end() + 1):
        print(seq, digest(await state_at(log, AtSequence(seq))))
    print(msgspec.json.encode(await verify(log)).decode())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
