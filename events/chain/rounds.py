"""Signed rounds: which master wrote a round, provable from the round alone.

On a cluster that names its masters' keys (`TrustEnabled.masters`), every round holds `previous`, the sequence of the record
before it on the rounds' subject, and a signature of the master's key.  Both are in the body, so they survive purges, archives,
exports and imports, also into a cluster of another name.

The signature covers the body as it is stored, with zeros in place of the signature, so a reader verifies it without knowing
every fact in it.  `previous` makes a round that is stored again elsewhere worthless: it has another predecessor there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from events.chain.seals import KeyUnusableError, public_bytes
from events.codec import encode
from events.limits import SIGNATURE_DIGITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from events.chain.seals import SealKey
    from events.kinds import Round

_NONE = "0" * SIGNATURE_DIGITS
_FIELD = msgspec.msgpack.encode("signature") + msgspec.msgpack.encode(_NONE)[:-SIGNATURE_DIGITS]
"""What stands before the signature.  Fields are sorted by name, so nothing that a user wrote comes after it."""


def signed(key: SealKey, event: Round, previous: int) -> Round:
    """Return the round, signed, to be stored directly after the record `previous` of the rounds' subject."""
    unsigned = msgspec.structs.replace(event, previous=previous, signature=_NONE)
    signature = key.sign(_statement(previous, encode(unsigned)))
    return msgspec.structs.replace(unsigned, signature=signature.hex())


def is_signed_by(body: bytes, previous: int, keys: Iterable[str]) -> bool:
    """Return whether one of these public keys signed the round with this body, to come directly after `previous`."""
    begin = body.rfind(_FIELD) + len(_FIELD)
    end = begin + SIGNATURE_DIGITS
    if begin < len(_FIELD) or end > len(body):
        return False
    try:
        signature = bytes.fromhex(body[begin:end].decode())
    except (ValueError, UnicodeDecodeError):
        return False
    statement = _statement(previous, body[:begin] + _NONE.encode() + body[end:])
    for key in keys:
        try:
            VerifyKey(public_bytes(key)).verify(statement, signature)
        except (CryptoError, KeyUnusableError, ValueError, TypeError):
            continue
        return True
    return False


def _statement(previous: int, body: bytes) -> bytes:
    return b"dorm round 1\n%d\n" % previous + body
