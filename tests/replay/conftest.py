"""One log, written by real parts, for all tests of replay."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from events.log.memory import MemoryBus, MemoryLog
from tests.replay.made_log import two_apps
from tests.replay.recorded import play

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.records import Record


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """A log by a real master and real agents."""
    return asyncio.run(_record(tmp_path_factory.mktemp("recorded")))


async def _record(root: Path) -> list[Record]:
    log = MemoryLog(time.time_ns)
    await play(log, MemoryBus(time.time_ns), "recorded", root)
    return log.records


@pytest.fixture(scope="session")
def written() -> list[Record]:
    """A scripted log with every kind of round, some of them decided before the records just ahead of them."""
    return two_apps().records


@pytest.fixture(params=["recorded", "written"])
def records(request: pytest.FixtureRequest) -> list[Record]:
    """Each of the two."""
    found: list[Record] = request.getfixturevalue(request.param)
    return found
