"""What this build makes of the golden logs: the state along the way and at the end, and of incidents an audit and stories."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.evolve import evolve
from dorm.core.state import SCHEMA, State, digest
from events import kinds as k
from events.archive.segments import open_archive
from replay.audit.audit import verify
from replay.story.story import tell

if TYPE_CHECKING:
    from events.log.interface import ReadableLog

FOLDER = Path(__file__).parent
MADE = FOLDER / "made.json"
_EVERY = 25


def archives() -> list[Path]:
    return sorted(FOLDER.glob("*.dorm"))


async def made_of_all() -> dict[str, Any]:
    """By file."""
    return {path.name: await made_of(path) for path in archives()}


async def made_of(path: Path) -> dict[str, Any]:
    log = await open_archive(path)
    try:
        made = await _folded(log)
        if log.anonymized:
            made |= {"audit": await _audited(log), "stories": await _stories(log)}
    finally:
        await log.close()
    return made


async def _folded(log: ReadableLog) -> dict[str, Any]:
    state, along, kinds = State(), {}, Counter[str]()
    async with aclosing(log.read()) as batches:
        async for batch in batches:
            for record in batch:
                event = evolve(state, record).event
                for one in event.events if isinstance(event, k.Round) else [event]:
                    kinds[type(one).__name__] += 1
                if record.seq % _EVERY == 0:
                    along[str(record.seq)] = _shape(state)
    return {"core": SCHEMA, "digest": digest(state), "kinds": dict(kinds), "along": along, "end": _shape(state)}


def _shape(state: State) -> dict[str, Any]:
    """What of a state no later core may see otherwise."""
    apps = {
        app.id: [app.phase, app.generation, app.failures, app.current.by_node() if app.current else {}]
        for app in state.apps.values()
    }
    nodes = {node.id: [node.condition, node.draining] for node in state.nodes.values()}
    counters: dict[str, int] = msgspec.to_builtins(state.counters)
    return {"apps": apps, "nodes": nodes, "counters": counters, "submissions": len(state.submissions)}


async def _audited(log: ReadableLog) -> dict[str, Any]:
    """Which rounds can be decided again depends on the policies and solvers that are installed; that none comes out
    otherwise does not."""
    report = await verify(log)
    return {
        "events": report.events,
        "rounds": report.rounds,
        "checked": report.decisions_checked + report.conclusions_checked,
        "not_checked": sorted(report.not_checked_because),
        "divergence": str(report.divergence or ""),
    }


async def _stories(log: ReadableLog) -> dict[str, Any]:
    """How many chapters each has, and all of their words as a digest."""
    state = State()
    async with aclosing(log.read()) as batches:
        async for batch in batches:
            for record in batch:
                evolve(state, record)
    found = {}
    for name in [*state.apps, *state.nodes]:
        chapters = (await tell(log, name, node=name in state.nodes)).chapters
        found[name] = [len(chapters), hashlib.sha256(msgspec.json.encode(chapters)).hexdigest()[:16]]
    return found
