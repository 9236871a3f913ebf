"""The figures of a log survive the process that counts them, whichever way it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from dorm.metrics.cluster_metrics import exposition
from dorm.metrics.log_figures import Follower
from events.log.records import LogUnavailable
from tests.master.sealed import sealed_log
from tests.metrics.scrapes import values
from tests.metrics.test_tally import counted
from tests.replay.busy import busy_log
from tests.replay.made_log import log_of
from tests.rotation.logs import ALL, Rotating

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from events.log.interface import ReadableLog
    from events.log.records import Record


@pytest.fixture(scope="module")
def busy() -> list[Record]:
    return busy_log(1200, apps=12, nodes=4)


@contextlib.asynccontextmanager
async def following(log: ReadableLog, file: Path | None, *, killed: bool = False) -> AsyncIterator[Follower]:
    """A process that counts; one that is killed saves nothing more."""
    follower = Follower(log, file=file, clock=time.time_ns)
    running = asyncio.create_task(follower.run())
    try:
        async with asyncio.timeout(20):
            await follower.ready.wait()
        yield follower
    finally:
        kept = file.read_bytes() if file is not None and file.exists() else None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if killed and file is not None:
            file.unlink(missing_ok=True)
            if kept is not None:
                file.write_bytes(kept)


async def scraped(follower: Follower) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return values(exposition(await follower.metrics()))


def totals(found: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> dict[object, float]:
    return {key: value for key, value in found.items() if key[0].endswith(("_total", "_count", "_sum", "_bucket"))}


async def test_counters_continue_after_a_stop_and_after_a_kill(busy: list[Record], tmp_path: Path) -> None:
    file = tmp_path / "counters.metrics"
    async with following(log_of(busy[:300]), file):
        pass
    assert file.exists()
    async with following(log_of(busy[:700]), file, killed=True) as second:
        assert (await scraped(second))["dorm_folded_sequence", ()] == 700
    async with following(log_of(busy), file) as third:
        found = await scraped(third)
    async with following(log_of(busy), None) as once:
        assert totals(found) == totals(await scraped(once))
    assert found["dorm_counted_from_sequence", ()] == 0
    assert found["dorm_apps_accepted_total", ()] == counted(busy)[1].accepted


async def test_another_build_starts_at_a_cut_without_the_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotating = Rotating(sealed_log(seals=3, between=30), tmp_path)
    assert await rotating.rotator().step(ALL) is not None
    (tmp_path / "archives").rename(tmp_path / "elsewhere")
    monkeypatch.setattr("dorm.metrics.log_figures.fingerprint", lambda *_: "another build")
    async with following(rotating.whole, None) as follower:
        assert (await scraped(follower))["dorm_folded_sequence", ()] == await rotating.stream.end()


@pytest.mark.parametrize("damage", ["cut", "another log", "later version"])
async def test_counting_starts_over_if_it_cannot_continue(busy: list[Record], tmp_path: Path, damage: str) -> None:
    file = tmp_path / "counters.metrics"
    async with following(log_of(busy[:300]), file):
        pass
    records = busy
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "another log":
        records = busy_log(400, apps=3, nodes=2, seed=9)
    else:
        file.write_bytes(file.read_bytes().replace(b'"version":1', b'"version":99'))
    async with following(log_of(records), file) as follower:
        found = await scraped(follower)
    total = sum(value for (name, _), value in found.items() if name == "dorm_records_total")
    assert total == len(records)


async def test_a_log_that_does_not_answer_leaves_its_figures_out(
    busy: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(busy[:200])
    async with following(log, None) as follower:

        async def away() -> int:
            raise LogUnavailable("away")

        monkeypatch.setattr(log, "end", away)
        found = await scraped(follower)
        assert found["dorm_log_up", ()] == 0
        assert ("dorm_log_lag_records", ()) not in found
        assert found["dorm_folded_sequence", ()] == 200
