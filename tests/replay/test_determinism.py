"""The same log gives the same states and the same decisions in every process."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from replay.audit.audit import Report
from replay.export.export import export
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.records import Record

pytestmark = pytest.mark.slow


async def printed(path: Path, hash_seed: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.replay.printed",
        str(path),
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out


@pytest.mark.soak
@pytest.mark.slow
async def test_hash_seeds_decide_nothing(records: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    await export(log_of(records), path)
    one, other = await asyncio.gather(printed(path, "1"), printed(path, "4242"))
    assert one == other
    report = msgspec.json.decode(one.splitlines()[-1], type=Report)
    assert report.good
    assert report.not_checked == 0
    assert len(set(one.splitlines())) == len(records) + 2
