"""Rows for analysis, for any content of a log."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.codec import encode
from events.kinds import (
    AppAccepted,
    AppSubmitted,
    ContainerStarted,
    Event,
    PolicyChanged,
    RotationRequested,
    Round,
    UserRemoved,
    WebhookRemoved,
)
from events.log.records import Record
from events.positions import Logged, Position
from events.spec import check_spec
from replay.export.export import export
from replay.export.selection import Selection
from replay.export.sink import FileFormat
from replay.export.tables import Users
from replay.moments import AtSequence
from tests.events.any_event import PUBLISHED, events_of, subject_of
from tests.replay.made_log import Story, log_of
from tests.tries import tries

_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(-9, 9), inner, max_size=3)
    ),
    max_leaves=8,
)
_SPEC = st.dictionaries(st.sampled_from(["name", "user", "n_max", "x"]), _PLAIN, max_size=4)
_BODY = st.one_of(
    st.binary(max_size=40),
    _SPEC.map(lambda spec: msgpack.packb({"kind": "AppSubmitted", "spec": spec})),
    st.just(b"\xc7\x04\x05abcd"),
)
_SUBJECT = st.sampled_from(
    [
        "dorm.story.AppSubmitted.eve",
        "dorm.story.round.master",
        "dorm.story.Novel.eve",
        "dorm.story.ContainerStarted.n1",
        "x",
    ]
)


@settings(max_examples=tries(5, 40), deadline=None)
@given(
    records=st.lists(
        st.tuples(_SUBJECT, _BODY) | events_of(*PUBLISHED).map(lambda event: (subject_of(type(event)), encode(event))),
        max_size=5,
    ),
    times=st.lists(st.integers(-(2**62), 2**62), min_size=8, max_size=8),
)
def test_every_record_becomes_rows(records: list[tuple[str, bytes]], times: list[int]) -> None:
    pytest.importorskip("pyarrow")
    log = log_of([Record(seq, times[seq - 1], subject, body) for seq, (subject, body) in enumerate(records, 1)])

    async def write(home: Path) -> None:
        found: dict[str, Any] = {}
        for name in ("rows.ndjson", "rows.parquet"):
            found[name] = await export(log, home / name)
        await export(log, home / "events.ndjson", form=FileFormat.cloudevents)
        rows = [json.loads(line) for line in (home / "rows.ndjson").read_bytes().splitlines()]
        assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
        assert found["rows.ndjson"].rows == found["rows.parquet"].rows == len(rows)

    with tempfile.TemporaryDirectory() as home:
        asyncio.run(write(Path(home)))


def test_the_owner_of_an_app() -> None:
    """Also of apps that were submitted before the part that is exported."""
    story = Story()
    spec = {"name": "hers", "command": ["work"], "demand": {"cpu": 1}, "user": "ann"}
    story.say(AppSubmitted(spec=spec), "bob")
    story.submit("his")
    story.settle()
    middle = story.state.seq
    story.say(PolicyChanged(quiet_ms=5), "carl")
    story.exit("hers", 0)
    story.settle()

    async def users(since: int) -> set[tuple[str, str]]:
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / "rows.ndjson"
            await export(log_of(story.records), path, selection=Selection(since=AtSequence(since)))
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        return {(str(row["app"])[:4], row["user"]) for row in rows if row["user"]}

    assert asyncio.run(users(1)) == {("hers", "ann"), ("his-", "someone"), ("None", "carl")}
    assert asyncio.run(users(middle + 1)) == {("hers", "ann"), ("None", "carl")}


@pytest.mark.parametrize("event", [RotationRequested(), WebhookRemoved(webhook="w"), UserRemoved(name="x")])
def test_whoever_requests_something_is_its_user(event: Event) -> None:
    row = Logged(Position(1), 0, f"dorm.c.{type(event).__name__}.carl", event)
    assert Users(None).of(row) == "carl"


def test_memory_for_users_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.export.tables._REMEMBERED", 10)
    users = Users(None)
    for number in range(50):
        users.of(
            Logged(Position(number), 0, "dorm.c.AppSubmitted.eve", AppSubmitted(id=f"{number}", by="eve", spec={}))
        )
    assert len(users._users) == 10
    app = check_spec({"name": "a", "command": ["x"], "demand": {"cpu": 1}})
    accepted = AppAccepted(app="a-1", spec=app, submission="49")
    said_in = Round(epoch=1, basis=1, allocated=False, events=[accepted])
    assert users.of(Logged(Position(50, 0), 0, "dorm.c.round.master", accepted, said_in)) == "eve"
    started = ContainerStarted(app="a-1", generation=1, slot=0, node="n")
    assert users.of(Logged(Position(51), 0, "dorm.c.ContainerStarted.n", started)) == "eve"
