"""The bench of looking back, and the history that it makes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.bench.replay import replay
from dorm.bench.replay.log import Stretch, events_in, records_of, stretch
from dorm.bench.replay.replay import Sizes, bench_replay, label
from dorm.core.fold.evolve import evolve
from dorm.core.state import State
from events.codec import decode, encode
from events.kinds import AppProgressed, AppSubmitted
from tests.bench.test_report import checked

if TYPE_CHECKING:
    from dorm.bench.report import Report

pytestmark = pytest.mark.slow

TINY = Sizes(records=6000, large=9000, server=2000, passes=1, jumps=2, bare=1, bare_large=1, jobs=1, stretch=1500)


@pytest.fixture(scope="module")
def one() -> Stretch:
    return stretch(1500)


def test_the_fold_acts_on_every_record_of_a_history(one: Stretch) -> None:
    state, kinds, apps = State(), Counter[str](), set[str]()
    identities = set[str]()
    for batch in records_of(one, 3 * len(one.told)):
        for record in batch:
            event, _ = evolve(state, record)
            assert (event.id, event.at) == (record.msg_id, record.time)
            identities.add(event.id)
            kinds[type(event).__name__] += 1
            apps |= state.apps.keys() if isinstance(event, AppSubmitted) else set()
    assert state.seq == len(identities) == 3 * len(one.told)
    assert not any(msgspec.structs.astuple(state.counters))
    first = sum(isinstance(decode(record), AppSubmitted) for record in one.told)
    assert len(apps) > 2 * first
    assert 0.6 < kinds["AppProgressed"] / state.seq < 0.9
    assert {app.ended for app in state.apps.values() if app.submitted_at < state.time - one.span} == {"completed"}


def test_a_repeated_stretch_differs_only_in_names_and_times(one: Stretch) -> None:
    records = [record for batch in records_of(one, 2 * len(one.told) + len(one.begin)) for record in batch]
    again = records[len(one.begin) + len(one.told) :]
    for old, new in zip(one.told, again, strict=True):
        assert new.subject == old.subject
        assert new.time - old.time == one.span
        assert new.seq - old.seq == len(one.told)
        before, after = decode(old), decode(new)
        assert type(before) is type(after)
        assert encode(after) != encode(before)
        if isinstance(before, AppProgressed) and isinstance(after, AppProgressed):
            assert (after.step, after.loss, after.samples_per_s) == (before.step, before.loss, before.samples_per_s)


def test_a_history_has_the_requested_number_of_records(one: Stretch) -> None:
    for most in (0, 3, len(one.begin), len(one.told), 2 * len(one.told) + 5):
        records = [record for batch in records_of(one, most) for record in batch]
        assert [record.seq for record in records] == list(range(1, most + 1))
        assert events_in(records) >= most


def _measured(report: Report) -> dict[str, float]:
    return {name: one["value"] for name, one in checked(msgspec.json.encode(report))["figures"].items()}


@pytest.mark.soak
def test_a_tiny_run_gives_all_figures() -> None:
    done = bench_replay(TINY, tell=lambda _: None)
    found = _measured(done.report)
    assert not done.interrupted
    assert found.keys() >= {
        "archive_fold_events_per_s", "archive_fold_records_per_s", "jetstream_fold_events_per_s", "archive_bytes_per_event",
        "verify_decisions_per_s", "state_at_6k_p50_s", "state_at_9k_p50_s", "state_at_6k_no_snapshots_p50_s", "restart_s",
        "peak_memory_mb",
    }  # fmt: skip
    assert all(value > 0 for value in found.values())
    goals = {name: str(one.goal) for name, one in done.report.figures.items() if one.reached is not None}
    assert goals == replay.GOALS
    assert done.report.settings["verify"]["decisions"] > 5


@pytest.mark.soak
def test_ctrl_c_keeps_the_measurements_so_far() -> None:
    def tell(words: str) -> None:
        if words.startswith("deciding"):
            raise KeyboardInterrupt

    done = bench_replay(TINY, tell=tell)
    assert done.interrupted
    assert done.report.settings["interrupted"]
    assert "archive_fold_events_per_s" in _measured(done.report)
    assert "verify_decisions_per_s" not in done.report.figures


def test_sizes_have_short_labels() -> None:
    assert [label(size) for size in (1_000_000, 10_000_000, 250_000, 999, 1500)] == ["1m", "10m", "250k", "999", "1500"]
