"""The hash chain: its content and its marks."""

from __future__ import annotations

from hashlib import blake2b

import msgpack
import pytest

from events.chain import (
    MARK_EVERY,
    START,
    Chain,
    KeyUnusableError,
    SealKey,
    check_public,
    is_signed_seal,
    link,
    mark_places,
    new_seed,
    seal_statement,
)
from events.kinds import LogSealed
from events.log.records import Record
from tests.errors import raises


def record(seq: int) -> Record:
    return Record(seq, 1_700_000_000_000_000_000 + seq, "dorm.local.AppUpdated.me", b"body", f"me.{seq}")


def test_anyone_can_compute_the_chain() -> None:
    packed = msgpack.packb([1, 1_700_000_000_000_000_001, "dorm.local.AppUpdated.me", b"body", "me.1"])
    assert link(START, record(1)) == blake2b(bytes(32) + packed, digest_size=32).digest()


def followed(upto: int, chain: Chain | None = None) -> Chain:
    chain = chain or Chain()
    for seq in range(chain.seq + 1, upto + 1):
        chain.follow(record(seq))
    return chain


def test_a_chain_continues_from_its_value() -> None:
    whole, half = followed(500), followed(200)
    assert followed(500, Chain(200, half.value)).value == whole.value


@pytest.mark.parametrize("begin", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize("end", [200, 255, 256, 257, 1000])
@pytest.mark.parametrize("most", [1, 3, 100])
def test_marks_are_at_the_places_that_readers_expect(begin: int, end: int, most: int) -> None:
    chain = followed(end)
    chain.forget(begin)
    every, marks = chain.marks(most)
    places = mark_places(begin, end, every)
    assert len(marks) == 16 * len(places)
    assert len(places) <= most
    assert [marks[16 * i : 16 * i + 16] for i in range(len(places))] == [
        followed(place).value[:8].hex() for place in places
    ]
    assert chain.mark(begin // MARK_EVERY * MARK_EVERY) == ""


def test_a_signed_seal() -> None:
    key, chain = SealKey(new_seed()), followed(70)
    seal = key.seal("local", 3, chain, 0)
    assert (seal.upto, seal.chain, seal.key, seal.every) == (70, chain.value.hex(), key.public, 64)
    assert is_signed_seal("local", 3, seal)
    assert not is_signed_seal("local", 4, seal)
    assert not is_signed_seal("other", 3, seal)
    assert seal_statement("local", 3, seal).decode().splitlines() == [
        "dorm seal 1", "local", "3", "70", seal.chain, "0", "64", seal.marks,
    ]  # fmt: skip
    for key_text in ("", "C", "nonsense", "é", key.public[:-1], key.public.lower()):
        assert not is_signed_seal("local", 3, LogSealed(upto=1, chain="", key=key_text, signature="zz"))


@pytest.mark.parametrize(
    "seed",
    [b"", b"S", b"\xff\x00", b"A" * 58, b"=" * 20, new_seed()[:-1], new_seed().lower()],
    ids=["nothing", "short", "bytes", "letters", "padding", "cut", "lower case"],
)
def test_invalid_keys_are_refused_without_being_shown(seed: bytes) -> None:
    with pytest.raises(KeyUnusableError) as refused:
        SealKey(seed)
    assert len(seed) < 3 or seed.decode("latin-1") not in str(refused.value)


def test_a_public_key_that_is_mistyped() -> None:
    public = SealKey(new_seed()).public
    assert check_public(public) == public
    other = public[:20] + ("A" if public[20] != "A" else "B") + public[21:]
    for wrong, code in ((other, "key.mistyped"), (public[:-1], "key.malformed"), ("U" + public[1:], "key.malformed")):
        with raises(KeyUnusableError, code):
            check_public(wrong)
