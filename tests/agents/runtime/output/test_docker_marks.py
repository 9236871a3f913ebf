"""Reading an engine's output on behind a mark: exactly the rest, though its messages have no numbers."""

from __future__ import annotations

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from agents.runtime.docker.engine import Marks, divided
from agents.runtime.interface import Unavailable
from tests.errors import raises
from tests.tries import tries

MILLI = 10**6
steps = st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 300)), min_size=1, max_size=40)


class Cuts:
    """Draws these numbers, as an explicit example."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = list(numbers)

    def draw(self, _: object) -> int:
        return self._numbers.pop(0)


def asked(stored: list[int], since: int | None, tail: int | None) -> list[int]:
    """The places of the messages that the engine gives."""
    last = range(len(stored))[len(stored) - min(tail, len(stored)) :] if tail is not None else range(len(stored))
    return [place for place in last if since is None or stored[place] >= since]


@settings(max_examples=tries(8, 5000), deadline=None)
@example(steps=[(0, 0)] * 4, tail=2, since=0, cuts=Cuts(1, 2))
@given(steps=steps, tail=st.none() | st.integers(1, 40), since=st.none() | st.integers(0, 60_000), cuts=st.data())
def test_reading_continues_after_a_mark(
    steps: list[tuple[int, int]], tail: int | None, since: int | None, cuts: st.DataObject
) -> None:
    """Messages of two streams may be stored up to 0.3 s out of order, but not where a `tail` cuts the order: only those whose
    time is before that of its first one may be passed over."""
    now, stored = 10**12, list[int]()
    for step, back in steps:
        now += step * MILLI
        stored.append(now - back * MILLI + len(stored))
    begin = None if since is None else 10**12 + since * MILLI
    whole = given = asked(stored, begin, tail)
    assume(not whole or tail is None or max(stored[: whole[0]], default=0) < stored[whole[0]])
    read = list[int]()
    skip = 0
    while given:
        marks, left = Marks(begin, None if skip else tail), skip
        stop = cuts.draw(st.integers(1, len(given)))
        for place in given[:stop]:
            marks.read(stored[place])
            if left:
                left -= 1
            else:
                read.append(place)
        if stop == len(given):
            break
        if stop > skip:  # A piece came with the mark.
            first, count = str(marks).split("-")
            begin, skip = int(first), int(count)
        given = asked(stored, begin, None if skip else tail)
    late = {place for place in whole if stored[place] < stored[whole[0]]}
    assert [place for place in read if place not in late] == [place for place in whole if place not in late]
    assert len(set(read)) == len(read)


def test_a_message_of_the_engine_is_split_into_time_and_output() -> None:
    at = 1795484978 * 10**9 + 837434802
    assert divided(b"2026-11-24T01:49:38.837434802Z a b\n") == (at, b"a b\n")
    assert divided(b"2026-11-24T01:49:38Z \xff") == (at // 10**9 * 10**9, b"\xff")
    assert divided(b"2026-11-24T01:49:38.8Z ") == (at // 10**9 * 10**9 + 8 * 10**8, b"")
    for bad in (b"", b"no time", b"2026-11-24T01:49:38.837434802Z", b"\xff \n"):
        with raises(Unavailable, "container.logs.malformed"):
            divided(bad)
