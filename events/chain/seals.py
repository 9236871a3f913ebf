"""Seals of the log: what a master signs, with which key, and how a seal is verified.

A key is an nkey (Ed25519, in the format of NATS): a seed that its master keeps, `SC…`, and the public key, `C…`.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING

import msgspec
import nkeys
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from events.errors import DormError
from events.kinds import LogSealed

if TYPE_CHECKING:
    from events.chain.hash_chain import Chain

MOST_MARKS = 256
"""The most marks in one seal: otherwise the first seal of a log that was never sealed would have too many."""
_PUBLIC_BYTES = 1 + 32 + 2
"""Prefix, key, checksum."""


class KeyUnusableError(DormError, ValueError):
    """Not a key, or of another kind; the message never holds any of it."""

    code = "key.malformed"


class SealKey:
    """A master's key.  It holds the seed, which is never printed."""

    def __init__(self, seed: bytes) -> None:
        """Raises KeyUnusableError."""
        try:
            self._pair = nkeys.from_seed(bytearray(seed))
            self.public = self._pair.public_key.decode()
        except (nkeys.NkeysError, ValueError, TypeError, IndexError):
            raise KeyUnusableError("it holds no seed of an nkey") from None
        if not self.public.startswith("C"):
            raise KeyUnusableError(
                "it holds an nkey of another kind; a cluster's key begins with SC", code="key.wrong_kind"
            ) from None

    def seal(self, cluster: str, epoch: int, chain: Chain, after: int) -> LogSealed:
        """Return a seal of all that the chain has followed; its marks start after `after`."""
        every, marks = chain.marks(MOST_MARKS)
        said = LogSealed(
            upto=chain.seq,
            chain=chain.value.hex(),
            key=self.public,
            signature="",
            after=after,
            every=every,
            marks=marks,
        )
        return msgspec.structs.replace(said, signature=self.sign(statement(cluster, epoch, said)).hex())

    def sign(self, text: bytes) -> bytes:
        """Return the key's signature of a text."""
        signature: bytes = self._pair.sign(text)
        return signature


def new_seed() -> bytes:
    """Return the seed of a new key, as it is kept in a file."""
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_CLUSTER)
    return seed


def statement(cluster: str, epoch: int, seal: LogSealed) -> bytes:
    """Return the signed text: lines, so that a seal can be checked without our code."""
    words = ("dorm seal 1", cluster, epoch, seal.upto, seal.chain, seal.after, seal.every, seal.marks)
    return "".join(f"{word}\n" for word in words).encode()


def is_signed(cluster: str, epoch: int, seal: LogSealed) -> bool:
    """Return whether the seal, as it is, was signed with the key that it names."""
    try:
        verifier = VerifyKey(public_bytes(seal.key))
        verifier.verify(statement(cluster, epoch, seal), bytes.fromhex(seal.signature))
    except (CryptoError, ValueError, TypeError):
        return False
    return True


def check_public(key: str) -> str:
    """Return the key.  Raises KeyUnusableError if it is not a public key of a cluster."""
    public_bytes(key)
    return key


def public_bytes(key: str) -> bytes:
    """Return the bytes of a cluster's public key.  Raises KeyUnusableError."""
    try:
        raw = base64.b32decode(key)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _PUBLIC_BYTES or raw[0] != nkeys.PREFIX_BYTE_CLUSTER:
        raise KeyUnusableError(
            f"{key[:80]!r} is not a public key of a cluster; write 56 letters and digits that begin with C"
        )
    if nkeys.crc16(raw[:-2]).to_bytes(2, "little") != raw[-2:]:
        raise KeyUnusableError(f"{key[:80]!r} is mistyped: its checksum does not match", code="key.mistyped")
    return raw[1:-2]
