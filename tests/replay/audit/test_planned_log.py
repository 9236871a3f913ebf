"""A whole log under `oasis`: admitted by prices, run by plans, decided again by an audit, explained, and disguised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from events import kinds as k
from events.codec import encode
from events.spec import check_spec
from replay.audit.audit import verify
from replay.simulator.scenario import Scenario
from replay.simulator.speed import Linear
from replay.simulator.workload import SimulatedApp
from tests.replay.made_log import log_of
from tests.simulator.scenarios import nodes, play

if TYPE_CHECKING:
    from tests.simulator.scenarios import Written

URGENT = {"worth": 40, "decay": 20, "target": "10m"}


def training(name: str, at_s: float, work_s: float, **fields: Any) -> SimulatedApp:
    """`work_s` seconds of one container, as it declares."""
    document = {
        "name": name, "command": ["train"], "demand": {"cpu": 1, "memory": "1GiB"}, "n_max": 8,
        "work": {"mini_batch": "1s", "chunks": 8, "mini_batches": int(work_s / 8)}, **fields,
    }  # fmt: skip
    return SimulatedApp(at_s=at_s, spec=check_spec(document), work=work_s, speed=Linear())


def planned() -> Written:
    apps = (
        training("patient", 0.0, 4000, utility={"worth": 5}),
        training("urgent", 100.0, 2000, utility=URGENT),
        training("silent", 200.0, 800),
        training("worthless", 250.0, 4000, utility={"worth": 1e-6, "decay": 100}),
    )
    return play(
        Scenario(
            apps=apps,
            nodes=nodes(2),
            policy="oasis",
            params={"slot_s": 120.0, "slots": 60},
            until_s=20_000.0,
            idle_s=3600.0,
        )
    )


async def test_the_audit_makes_the_same_plans_again() -> None:
    run = planned()
    facts = [fact for event in run.events if isinstance(event, k.Round) for fact in event.events]
    plans = [fact for fact in facts if isinstance(fact, k.AppPlanned)]
    by_app = {fact.app.rsplit("-", 1)[0] for fact in plans}
    assert {"patient", "urgent", "silent"} <= by_app
    ended = {app.name: app.ended for app in run.state.apps.values()}
    assert [ended[name] for name in ("patient", "urgent", "silent")] == ["completed"] * 3
    assert "deadline" in {fact.trigger for fact in facts if isinstance(fact, k.Resized)}, (
        "slots begin without any record"
    )
    report = await verify(log_of(run.records))
    assert report.divergence is None
    assert report.not_checked == 0
    assert report.decisions_checked >= len({fact.app for fact in plans})


async def test_a_promise_that_was_changed_on_the_log_is_found() -> None:
    run = planned()
    records = list(run.records)
    at = next(
        number
        for number, event in enumerate(run.events)
        if isinstance(event, k.Round) and any(isinstance(fact, k.AppPlanned) for fact in event.events)
    )
    event = run.events[at]
    assert isinstance(event, k.Round)
    cheaper = [
        msgspec.structs.replace(fact, cost=0.0) if isinstance(fact, k.AppPlanned) else fact for fact in event.events
    ]
    records[at] = msgspec.structs.replace(records[at], body=encode(msgspec.structs.replace(event, events=cheaper)))
    report = await verify(log_of(records))
    assert report.divergence is not None
    assert report.divergence.seq == records[at].seq
