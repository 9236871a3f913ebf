"""The history of any length that benches read."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from dorm.bench.long_log import Stretch, events_in, records_of, stretch
from dorm.core.evolve import evolve
from dorm.core.state import State
from events.codec import decode, encode
from events.kinds import AppProgressed, AppSubmitted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one() -> Stretch:
    return stretch(1500)


def test_the_fold_acts_on_every_record_of_a_history(one: Stretch) -> None:
    state, kinds, apps = State(), Counter[str](), set[str]()
    identities = set[str]()
    for batch in records_of(one, 3 * len(one.repeated)):
        for record in batch:
            event, _ = evolve(state, record)
            assert (event.id, event.at) == (record.msg_id, record.time)
            identities.add(event.id)
            kinds[type(event).__name__] += 1
            apps |= state.apps.keys() if isinstance(event, AppSubmitted) else set()
    assert state.seq == len(identities) == 3 * len(one.repeated)
    assert not any(msgspec.structs.astuple(state.counters))
    first = sum(isinstance(decode(record), AppSubmitted) for record in one.repeated)
    assert len(apps) > 2 * first
    assert 0.6 < kinds["AppProgressed"] / state.seq < 0.9
    assert {app.ended for app in state.apps.values() if app.submitted_at < state.time - one.span} == {"completed"}


def test_a_repeated_stretch_differs_only_in_names_and_times(one: Stretch) -> None:
    records = [record for batch in records_of(one, 2 * len(one.repeated) + len(one.begin)) for record in batch]
    again = records[len(one.begin) + len(one.repeated) :]
    for old, new in zip(one.repeated, again, strict=True):
        assert new.subject == old.subject
        assert new.time - old.time == one.span
        assert new.seq - old.seq == len(one.repeated)
        before, after = decode(old), decode(new)
        assert type(before) is type(after)
        assert encode(after) != encode(before)
        if isinstance(before, AppProgressed) and isinstance(after, AppProgressed):
            assert (after.step, after.loss, after.samples_per_s) == (before.step, before.loss, before.samples_per_s)


def test_a_history_has_the_requested_number_of_records(one: Stretch) -> None:
    for most in (0, 3, len(one.begin), len(one.repeated), 2 * len(one.repeated) + 5):
        records = [record for batch in records_of(one, most) for record in batch]
        assert [record.seq for record in records] == list(range(1, most + 1))
        assert events_in(records) >= most
