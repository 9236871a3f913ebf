"""A state that was dumped and loaded equals the original, also after further folds."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgpack
import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.core.evolve import evolve
from dorm.core.snapshot import copy, dump, load, pack
from dorm.core.state import State, digest
from events.log.records import Record
from events.log.stores import content_of
from tests.core.golden_log import recorded
from tests.core.records import START
from tests.core.virtual.world import World
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from events.log.stores import SnapshotInfo

BUILD = "this one"


def again(state: State) -> State:
    """What comes back from a snapshot of it."""
    info, body = dump(state, build=BUILD)
    loaded = load(info, body, build=BUILD)
    assert loaded is not None
    assert (info.seq, info.time, info.digest) == (state.seq, state.time, digest(state))
    assert info.size == len(body)
    return loaded


def assert_alike(a: Any, b: Any, path: str = "state") -> None:
    """Equal, in the same order, and of the same types all the way down: more than a digest can see."""
    assert type(a) is type(b), path
    if isinstance(a, msgspec.Struct):
        for name in a.__struct_fields__:
            assert_alike(getattr(a, name), getattr(b, name), f"{path}.{name}")
    elif isinstance(a, dict):
        assert [*a] == [*b], path
        for key, other in zip(a, b, strict=True):
            assert_alike(key, other, f"{path} key")
            assert_alike(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for index, (one, other) in enumerate(zip(a, b, strict=True)):
            assert_alike(one, other, f"{path}[{index}]")
    else:
        assert a == b or a != a != b, path  # NaN is not what it is


def changeable(value: Any) -> Iterator[int]:
    """Identities of all that could be changed in place, each as often as it is met."""
    if isinstance(value, msgspec.Struct):
        if value.__struct_config__.frozen:
            return
        yield id(value)
        for name in value.__struct_fields__:
            yield from changeable(getattr(value, name))
    elif isinstance(value, dict | list):
        yield id(value)
        for part in value.values() if isinstance(value, dict) else value:
            yield from changeable(part)


@cache
def history(seed: int) -> list[Record]:
    return recorded()[0] if seed == 0 else World(seed, steps=120, outages=0.3 * (seed % 2)).run().log


@settings(max_examples=tries(4, 30), deadline=None)
@given(seed=st.integers(0, 4), where=st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_a_log_cut_anywhere_and_folded_on_from_a_snapshot_gives_the_same_state(seed: int, where: list[float]) -> None:
    records = history(seed)
    cuts = {round(part * len(records)) for part in where}
    whole = State()
    resumed = again(whole) if 0 in cuts else State()
    for record in records:
        evolve(whole, record)
        evolve(resumed, record)
        assert digest(resumed) == digest(whole)
        if record.seq in cuts:
            assert_alike(resumed := again(resumed), whole)
    assert_alike(resumed, whole)


@pytest.mark.parametrize("seed", range(5))
def test_no_two_places_of_a_state_share_mutable_values(seed: int) -> None:
    """They would be two things once loaded, and the digest would not show it before the next record."""
    state = State()
    for record in history(seed):
        evolve(state, record)
        if record.seq % 20 == 0:
            found = list(changeable(state))
            assert len(found) == len(set(found))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary())
    | st.builds(msgpack.Timestamp, st.integers(0, 2**33), st.integers(0, 999_999_999)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=10,
)


@given(spec=ANYTHING)
def test_foreign_submissions_survive_a_round_trip(spec: Any) -> None:
    state = State()
    body = msgpack.packb({"kind": "AppSubmitted", "spec": spec})
    evolve(state, Record(1, START, "dorm.test.AppSubmitted.ann", body))
    assert state.submissions
    assert_alike(again(state), state)


@pytest.fixture
def state() -> State:
    state = State()
    for record in recorded()[0][:100]:
        evolve(state, record)
    return state


def test_a_copy_does_not_change_with_the_state(state: State) -> None:
    before, seq = digest(state), state.seq
    taken = copy(state)
    evolve(state, recorded()[0][seq])
    info, body = pack(taken, build=BUILD, chain="c0ffee")
    assert (info.seq, info.digest, info.chain) == (seq, before, "c0ffee")
    loaded = load(info, body, build=BUILD)
    assert loaded is not None
    assert digest(loaded) == before != digest(state)


def test_snapshots_of_another_build_or_core_are_not_used(state: State) -> None:
    info, body = dump(state, build="another one")
    assert load(info, body, build=BUILD) is None
    assert load(info, body, build=None) is not None
    assert load(msgspec.structs.replace(info, core=info.core + 1), body, build=None) is None


@pytest.mark.parametrize("wrong", [{"seq": 7}, {"time": 7}, {"digest": "0" * 32}, {"content": "0" * 64}])
def test_a_forged_snapshot_is_not_used(state: State, wrong: dict[str, Any]) -> None:
    info, body = dump(state, build=BUILD)
    assert load(msgspec.structs.replace(info, **wrong), body, build=BUILD) is None


def renamed(info: SnapshotInfo, body: bytes) -> SnapshotInfo:
    """As an attacker would who can write to the store."""
    return msgspec.structs.replace(info, content=content_of(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        zstandard.compress(b"nonsense"),
        zstandard.compress(msgspec.msgpack.encode({"seq": "many"})),
        zstandard.compress(b"\x81\xa3seq" + b"\x91" * 3000 + b"\x01"),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"\x80"),
        # A frame that says it holds 2^63 bytes.
        b"\x28\xb5\x2f\xfd\xe0" + (2**63).to_bytes(8, "little") + b"\x01\x00\x00",
    ],
)
def test_damaged_bodies_raise_nothing(state: State, body: bytes) -> None:
    info, _ = dump(state, build=BUILD)
    assert load(renamed(info, body), body, build=BUILD) is None


@given(data=st.data())
def test_no_damage_passes_unseen(data: st.DataObject) -> None:
    info, body = dump(State(seq=3, epoch=2), build=BUILD)
    place = data.draw(st.integers(0, len(body) - 1))
    damaged = body[:place] + bytes([body[place] ^ data.draw(st.integers(1, 255))]) + body[place + 1 :]
    assert load(info, damaged, build=BUILD) is None
    loaded = load(renamed(info, damaged), damaged, build=BUILD)
    assert loaded is None or digest(loaded) == info.digest
