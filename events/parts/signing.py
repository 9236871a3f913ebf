"""Signed parts: which master wrote a part, provable from the part alone.

The document names its cluster, node, and the record that it derives from, and the signature covers it as it is stored.  So a
part is worthless for another node or cluster, and an older one of the same node is recognized by its `seq`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from events.chain.seals import KeyUnusableError, public_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from events.chain.seals import SealKey


def sign(key: SealKey, document: bytes) -> str:
    """Return the signature of a part's document, in hex digits."""
    return key.sign(_statement(document)).hex()


def is_signed_by(document: bytes, signature: str, keys: Iterable[str]) -> bool:
    """Return whether one of these public keys signed the document."""
    try:
        said = bytes.fromhex(signature)
    except ValueError:
        return False
    for key in keys:
        try:
            VerifyKey(public_bytes(key)).verify(_statement(document), said)
        except (CryptoError, KeyUnusableError, ValueError, TypeError):
            continue
        return True
    return False


def _statement(document: bytes) -> bytes:
    return b"dorm part 1\n" + document
