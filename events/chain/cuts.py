"""Cuts: a master's signed statement that the log up to a record lies in an archive (`events.kinds.LogRotated`).

The statement names the hash chain there, so it holds for one log only, whatever the cluster is called.  It also names the
snapshot of the state, so a reader can start at the cut without the archives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from events.chain.seals import public_bytes

if TYPE_CHECKING:
    from events.chain.seals import SealKey
    from events.kinds import LogRotated


def signed(key: SealKey, cut: LogRotated) -> LogRotated:
    """Return the cut, signed with this key."""
    unsigned = msgspec.structs.replace(cut, key=key.public, signature="")
    return msgspec.structs.replace(unsigned, signature=key.sign(statement(unsigned)).hex())


def statement(cut: LogRotated) -> bytes:
    """Return the signed text: lines, so that a cut can be checked without our code."""
    words = ("dorm cut 1", cut.epoch, cut.after, cut.upto, cut.chain, cut.snapshot, cut.archive, cut.bytes)
    return "".join(f"{word}\n" for word in words).encode()


def is_signed(cut: LogRotated) -> bool:
    """Return whether the cut, as it is, was signed with the key that it names."""
    try:
        verifier = VerifyKey(public_bytes(cut.key))
        verifier.verify(statement(cut), bytes.fromhex(cut.signature))
    except (CryptoError, ValueError, TypeError):
        return False
    return True
