"""A round's signature: it covers every byte and the place, and needs no knowledge of the facts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from events.chain import SealKey, is_round_signed_by, new_seed, signed_round
from events.codec import decode, encode
from events.kinds import AppAccepted, AppCancelled, Round
from events.log.records import Record
from events.spec import AppSpec

KEY, OTHER = SealKey(new_seed()), SealKey(new_seed())
TEXTS = ["", "0" * 128, "signature", "\xa9signature\xd9\x80" + "0" * 128]
"""Also such as look like the place of the signature."""


def round_of(text: str = "") -> Round:
    facts: list[Any] = [
        AppCancelled(app="a", generation=1, reason=text),
        AppAccepted(
            app="b", submission="s", spec=AppSpec(name="b", command=[text], demand={"cpu": "1"}, env={"E": text})
        ),
    ]
    return Round(id="m.1", at=1, by="m", epoch=1, basis=6, allocated=False, events=facts)


@pytest.mark.parametrize("text", TEXTS)
def test_only_the_keys_own_rounds_are_signed(text: str) -> None:
    made = signed_round(KEY, round_of(text), 5)
    body = encode(made)
    assert is_round_signed_by(body, 5, [OTHER.public, KEY.public])
    assert not is_round_signed_by(body, 5, [OTHER.public])
    assert not is_round_signed_by(body, 5, [])
    assert not is_round_signed_by(body, 4, [KEY.public]), "it is another round elsewhere"
    assert not is_round_signed_by(encode(round_of(text)), 5, [KEY.public])
    assert decode(Record(7, 1, "dorm.c.round.master", body, "")) == made


def test_every_byte_counts() -> None:
    body = encode(signed_round(KEY, round_of(), 5))
    for place in range(len(body)):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        assert not is_round_signed_by(changed, 5, [KEY.public]), place
    assert not is_round_signed_by(body[:-1], 5, [KEY.public])
    assert not is_round_signed_by(b"", 5, [KEY.public])
    assert not is_round_signed_by(body, 5, ["", "C" + "A" * 55, "nonsense"])


def test_a_reader_need_not_know_the_facts() -> None:
    """A later build's round, with a field and a fact that this one does not know."""
    document = msgspec.msgpack.decode(encode(signed_round(KEY, round_of(), 5)))
    document["signature"], document["aaa"] = "0" * 128, {"new": [1]}
    document["events"].append({"kind": "FromTheFuture", "text": "x"})
    raw = msgspec.msgpack.encode(document, order="deterministic")
    at = raw.rfind(b"0" * 128)
    whole = raw[:at] + KEY.sign(b"dorm round 1\n5\n" + raw).hex().encode() + raw[at + 128 :]
    assert is_round_signed_by(whole, 5, [KEY.public])


def test_the_signature_is_the_last_text_of_a_round() -> None:
    """Nothing that a user wrote comes after it, or the text could pass for the signature's place."""
    fields = sorted(["kind", *Round.__struct_fields__])
    assert fields[fields.index("signature") + 1 :] == ["v"]
    assert fields.index("events") < fields.index("signature")
