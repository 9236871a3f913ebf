"""Code that reads the answers of plug-in policies, and outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.plugins import wire
from dorm.policies import checking
from dorm.policies.problem import Allocation, PolicyFailure, Problem
from dorm.policies.registry import policy
from events.quantities import SECOND
from replay.bisect import OutcomeError, atoms, parse
from tests.fuzz.edits import changed, spliced
from tests.fuzz.target import Target, one_line
from tests.policies.problems import app, node

if TYPE_CHECKING:
    from tests.fuzz.edits import Source

_NODES = (node("n1", 4, 4), node("n2", 4, 4))
_APPS = (app("a", 1, 1, (1, 4), {"n1": 1}), app("b", 1, 1, (1, 4)), app("p", 1, 1, (1, 2), {"n2": 1}, pinned=True))


def _problem() -> Problem:
    return Problem(_NODES, _APPS)


def _answers(source: Source) -> bytes:
    """Yield messages of a policy's process: a good answer with changes."""
    answer = policy("static").allocate(_problem(), {"count": 2})
    tree = changed(source, msgspec.to_builtins(answer), alike=source.one_in(3))
    try:
        body = msgspec.msgpack.encode(tree)
    except (OverflowError, TypeError, ValueError):
        body = b"\xc0"
    said = msgspec.msgpack.encode({"type": "Answered", "body": msgspec.Raw(body)})
    return spliced(source, said) if source.one_in(4) else said


def _check_answer(data: bytes) -> None:
    try:
        answer = wire.answer_in(wire.reply_in(data), Allocation)
    except PolicyFailure as error:
        one_line(error)
        return
    found = checking.faults(_problem(), answer)
    assert len(checking.in_words(found)) <= 500
    if not found:
        assert sum(answer.counts["a"].values()) in (0, 1, 2, 3, 4)
        assert answer.counts["p"] == {"n2": 1}


_OUTCOMES = (
    "digits completed before 10:00",
    "not (a has at least 3 containers at -10m) and utilization above 80% at +2h",
    '"b c" waiting at 2023-11-14T10:00+01:00 or waiting apps at most 2 at 10:00:30',
)


def _outcomes(source: Source) -> bytes:
    return spliced(source, source.pick(_OUTCOMES), _OUTCOMES).encode(errors="replace")


def _check_outcome(data: bytes) -> None:
    try:
        assert atoms(parse(data.decode(errors="replace"), 1_700_000_000 * SECOND))
    except OutcomeError as error:
        one_line(error)


TARGETS = [
    Target("policy-answer", 6, _answers, _check_answer),
    Target("outcome", 4, _outcomes, _check_outcome),
]
