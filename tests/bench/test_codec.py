"""The codec's bench, and the log that it reads."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from dorm.bench import BenchError
from dorm.bench.codec import bench_codec
from dorm.bench.demo_log import demo_log
from dorm.core.evolve import evolve
from dorm.core.state import State, digest
from events.codec import decode
from events.kinds import Round
from events.log.records import Record
from tests.bench.test_report import checked
from tests.errors import raises

pytestmark = pytest.mark.slow


def test_the_demo_log_has_apps_that_contended_and_completed() -> None:
    records = demo_log()
    state = State()
    kinds = Counter[str]()
    facts = Counter[str]()
    for record in records:
        event, _ = evolve(state, record)
        kinds[type(event).__name__] += 1
        facts.update(type(fact).__name__ for fact in (event.events if isinstance(event, Round) else []))
    assert [app.ended for app in state.apps.values()] == ["completed"] * 3
    assert sum(app.adjustments for app in state.apps.values()) >= 3
    assert state.counters.ignored == state.counters.unknown == state.counters.unreadable == 0
    assert facts.keys() == {"MasterElected", "AppAccepted", "Resized", "GenerationReleased", "AppCompleted"}
    # The shares of a recorded demo: 68 % progress, 9 % checkpoints, 7 % each of starts, exits and rounds.
    shares = {kind: count / len(records) for kind, count in kinds.items()}
    assert 0.60 < shares["AppProgressed"] < 0.75
    for kind in ("AppCheckpointed", "ContainerStarted", "ContainerExited", "Round"):
        assert 0.04 < shares[kind] < 0.12, kind


def test_the_demo_log_is_the_same_every_time() -> None:
    def folded() -> str:
        state = State()
        for record in demo_log():
            evolve(state, record)
        return digest(state)

    assert folded() == folded()


def test_a_small_run_gives_all_figures() -> None:
    said: list[str] = []
    made = bench_codec(events=1000, passes=2, progress=said.append)
    document = checked(msgspec.json.encode(made))
    assert document["bench"] == "codec"
    assert document["figures"].keys() == {
        "decode_fold_events_per_s", "decode_fold_median_events_per_s",
        *(f"{what}{which}_us" for what in ("encode", "decode", "fold", "decode_fold", "msgpack_unpack")
          for which in ("", "_median")),
    }  # fmt: skip
    assert {name for name, one in document["figures"].items() if "goal" in one} == {"decode_fold_events_per_s"}
    assert document["figures"]["decode_fold_events_per_s"]["goal"] == ">= 700000"
    rate, cost = (document["figures"][name]["value"] for name in ("decode_fold_events_per_s", "decode_fold_us"))
    assert rate * cost == pytest.approx(1e6, rel=1e-4)
    assert said


def test_a_log_that_cannot_be_read_is_not_measured() -> None:
    *_, last = records = demo_log()[:5]
    foreign = Record(last.seq + 1, last.time, "dorm.demo.FromAnotherWorld.someone", b"\x80", "x")
    assert type(decode(foreign)).__name__ == "Unknown"
    with raises(BenchError, "log.unreadable"):
        bench_codec(events=10, passes=1, progress=print, log=[*records, foreign])
    with raises(BenchError, "log.empty"):
        bench_codec(events=10, passes=1, progress=print, log=[])
