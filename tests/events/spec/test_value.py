"""What an app is worth, and how much work it has, in a spec."""

from __future__ import annotations

from typing import Any

import pytest

from events.spec import SpecError, check_spec, document_of
from tests.core.records import document
from tests.errors import raises

WORK = {"mini_batch": "200ms", "chunks": 8, "mini_batches": 50, "epochs": 3, "exchange": "50ms"}


def test_they_are_optional_and_survive_a_round_trip() -> None:
    plain = check_spec(document("app"))
    assert (plain.utility, plain.work) == (None, None)
    spec = check_spec(document("app", utility={"worth": 40, "target": "2h"}, work=WORK))
    assert spec.utility is not None
    assert (spec.utility.worth, spec.utility.decay_per_s, spec.utility.target_s) == (40, 0.0, 7200.0)
    assert spec.work is not None
    assert spec.work.seconds == pytest.approx(3 * 8 * 50 * 0.25)
    assert check_spec(document_of(spec)) == spec
    assert document_of(spec)["work"] == WORK


def test_the_decay_is_per_hour() -> None:
    spec = check_spec(document("app", utility={"worth": 1, "decay": 4}))
    assert spec.utility is not None
    assert spec.utility.decay_per_s == pytest.approx(4 / 3600)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"utility": {}}, None, "utility"),
        ({"utility": {"worth": 0}}, None, "utility.worth"),
        ({"utility": {"worth": 1, "decay": -1}}, None, "utility.decay"),
        ({"utility": {"worth": 1, "target": "soon"}}, None, "utility.target"),
        ({"utility": {"worth": 1, "deadline": "1h"}}, None, "utility.deadline"),
        ({"work": {"chunks": 4}}, None, "mini_batch"),
        ({"work": {"mini_batch": "1s"}}, None, "chunks"),
        ({"work": {"mini_batch": "1s", "chunks": 0}}, None, "work.chunks"),
        ({"work": {"mini_batch": "-1s", "chunks": 1}}, None, "work.mini_batch"),
        ({"work": {"mini_batch": 0, "chunks": 1}}, "spec.work.mini_batch.zero", "work.mini_batch: 0 would be no work"),
        ({"work": {"mini_batch": "1s", "chunks": 1, "epoch": 2}}, None, "work.epoch"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_in_one_line(fields: dict[str, Any], code: str | None, words: str) -> None:
    if code:
        with raises(SpecError, code):
            check_spec(document("app", **fields))
    with pytest.raises(SpecError) as refused:
        check_spec(document("app", **fields))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
