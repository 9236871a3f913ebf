"""No record stops a reader: pictures, stories, explanations, exports, traces, metrics and audits of a log of pills."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.metrics.cluster_metrics import cluster_metrics, exposition
from dorm.metrics.tally import Tally
from dorm.web.offline import page
from events import kinds as k
from events.positions import logged
from replay.audit.audit import verify
from replay.comparison import compare
from replay.diff import diff, settings_between
from replay.export.anonymize import anonymized
from replay.export.export import export
from replay.incident import write
from replay.moments import AtSequence
from replay.page.recording import record
from replay.story.explanation import Witness, explain
from replay.story.story import follow, tell
from replay.timeline.fold import timeline
from replay.timeline.png import png
from replay.traces import Tracer
from replay.travel import fold_on, state_at
from replay.usage import as_csv, as_parquet, usage
from replay.usage import png as usage_png
from tests.core.fold.pills import FACTS, KINDS, NO_EVENTS, bodies_of, document_of, poisoned, subject_of, wrapped
from tests.replay.made_log import CLUSTER, Story, log_of
from tests.tries import step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from events.log.memory import MemoryLog
    from events.log.records import Record

LARGEST = 4096
"""Bytes: larger pills are longer texts, which `tests.core.fold.test_poison` tries."""
EACH = step(42)
"""One of this many pills of a kind is taken."""


@cache
def _records(forged: bool) -> tuple[Record, ...]:
    """A history of a cluster with pills in it: from anyone, or only in records of masters."""
    story = Story()
    for name in ("one", "two", "three"):
        story.submit(name, n_max=2)
    story.settle()
    for number, cls in enumerate(KINDS):
        if forged != (cls in FACTS or cls is k.Round) or cls is k.TrustEnabled:
            continue  # From a `TrustEnabled` on, nothing of this open cluster's users and masters would count.
        if "one" not in story.state.names:
            story = _again(story)
        plain = document_of(story.state, cls, "one")
        for pill in islice((plain, *poisoned(cls, plain)), number % EACH, None, EACH):
            for body in bodies_of(wrapped(cls, pill, epoch=story.state.epoch, basis=story.state.seq)):
                if len(body) < LARGEST:
                    story.store(subject_of(CLUSTER, cls, "n0"), body)
        for body in NO_EVENTS:
            story.store(subject_of(CLUSTER, cls, "eve"), body[:LARGEST])
    story.epoch = max(story.epoch, story.state.epoch)
    story.elect()
    story.settle()
    return tuple(story.records)


def _again(story: Story) -> Story:
    """With an app of this name that runs."""
    story.epoch = max(story.epoch, story.state.epoch)
    story.elect()
    story.join("n7")
    story.submit("one", n_max=1)
    story.settle()
    return story


async def _picture(log: MemoryLog, folder: Path) -> None:
    drawn = await timeline(log)
    (folder / "picture.png").write_bytes(png(drawn, "title"))


async def _page(log: MemoryLog, folder: Path) -> None:
    msgspec.json.encode(await record(log, "title"))


async def _stories(log: MemoryLog, folder: Path) -> None:
    for name in ("one", "two"):
        msgspec.json.encode(await tell(log, name))
    msgspec.json.encode(await tell(log, "n0", node=True))


async def _explanations(log: MemoryLog, folder: Path) -> None:
    for name in ("one", "two"):
        witness = Witness(name)
        state = await follow(log, name, [witness])
        msgspec.json.encode(explain(state, witness, state.time))


async def _exports(log: MemoryLog, folder: Path) -> None:
    for ending in (".dorm", ".jsonl", ".jsonl.zst", ".parquet"):
        await export(log, folder / f"copy{ending}")


async def _anonymous(log: MemoryLog, folder: Path) -> None:
    await export(await anonymized(log), folder / "anonymous.dorm")


async def _audit(log: MemoryLog, folder: Path) -> None:
    await verify(log)


async def _traces(log: MemoryLog, folder: Path) -> None:
    found: list[Any] = []
    spans = Tracer(CLUSTER, found.append)
    state = await state_at(log, AtSequence(1))
    tally = Tally.begin(state)
    spans.begin(state)

    def seen(*what: Any) -> None:
        spans.see(*what)
        tally.see(*what)

    await fold_on(log, state, await log.end(), seen=seen)
    assert found
    assert exposition(cluster_metrics(state, tally, state.time))
    msgspec.msgpack.encode(tally)


async def _differences(log: MemoryLog, folder: Path) -> None:
    end = await log.end()
    before, after = await state_at(log, AtSequence(end // 2)), await state_at(log, AtSequence(end))
    msgspec.json.encode(diff(before, after, await settings_between(log, before, after)))


async def _tail(log: MemoryLog, folder: Path) -> None:
    async for batch in log.read():
        for one in batch:
            for event in logged(one):
                assert str(event.position)


async def _accounts(log: MemoryLog, folder: Path) -> None:
    found = await usage(log, by=("user", "app", "node"), every_s=2.0)
    assert found.rows
    for written in (as_csv(found), as_parquet(found), usage_png(found, "title")):
        assert written
    msgspec.json.encode(await compare(log, "one", "two"))


async def _incident(log: MemoryLog, folder: Path) -> None:
    told = await write(log, folder / "ticket", AtSequence(5), before_s=1, disguised=False, page=page)
    assert told.happened


READERS: dict[str, Callable[[MemoryLog, Path], Awaitable[None]]] = {
    "picture": _picture, "page": _page, "stories": _stories, "explanations": _explanations, "exports": _exports,
    "anonymized": _anonymous, "audit": _audit, "traces and metrics": _traces, "differences": _differences, "tail": _tail,
    "accounts": _accounts, "incident": _incident,
}  # fmt: skip


@pytest.mark.parametrize("forged", [False, True], ids=["of anybody", "of a false master"])
@pytest.mark.parametrize("reader", READERS)
async def test_a_reader_reads_a_log_of_pills(reader: str, forged: bool, tmp_path: Path) -> None:
    await READERS[reader](log_of(list(_records(forged))), tmp_path)
