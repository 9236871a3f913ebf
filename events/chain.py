"""The hash chain over a log, and what masters sign with the keys that a cluster knows: seals, rounds and cuts.

*The chain* is one value that identifies all records up to a sequence.

    h(0) = 32 zero bytes
    h(n) = BLAKE2b-256( h(n-1), MessagePack [seq, time, subject, body, msg_id] of record n )

Integers are in MessagePack's shortest form, so equal records have equal bytes and anyone can recompute the chain.
Marks are the chain's first bytes at every `MARK_EVERY`-th sequence: they locate where two chains diverge.

*A seal* states the chain's value at a sequence.  A key is an nkey (Ed25519, in the format of NATS): a seed that its
master keeps, `SC…`, and the public key, `C…`.

*A signed round* proves which master wrote it, from the round alone.  On a cluster that names its masters' keys
(`TrustEnabled.masters`), every round holds `previous`, the sequence of the record before it on the rounds' subject,
and a signature of the master's key.  Both are in the body, so they survive purges, archives, exports and imports, also
into a cluster of another name.  The signature covers the body as it is stored, with zeros in place of the signature,
so a reader verifies it without knowing every fact in it.  `previous` makes a round that is stored again elsewhere
worthless: it has another predecessor there.

*A cut* is a master's signed statement that the log up to a record lies in an archive (`events.kinds.LogRotated`).  The
statement names the hash chain there, so it holds for one log only, whatever the cluster is called.  It also names the
snapshot of the state, so a reader can start at the cut without the archives.

Imports the vocabulary and `events.log`.
"""

from __future__ import annotations

import base64
import binascii
import os
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec
import nkeys
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from events.codec import encode
from events.errors import DormError
from events.kinds import LogSealed
from events.limits import SIGNATURE_DIGITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from events.kinds import LogRotated, Round
    from events.log.records import Record


# --- hash chain -------------------------------------------------------------------------------------------------------

START = bytes(32)
MARK_EVERY = 64
_MARK = 8
_encode = msgspec.msgpack.Encoder().encode


def link(value: bytes, record: Record) -> bytes:
    """Return the chain after one more record."""
    return blake2b(value + _encode(record), digest_size=32).digest()


class Chain:
    """The chain of a log that is read record by record, with the marks since some sequence.

    `seq` and `value` are its start: the log's start, or a place whose chain is known (a snapshot's)."""

    def __init__(self, seq: int = 0, value: bytes = START) -> None:
        self.seq = seq
        self.value = value
        self._marks = bytearray()
        self._first = seq // MARK_EVERY + 1
        """The first mark's sequence, as a multiple of MARK_EVERY."""

    def follow(self, record: Record) -> None:
        """Add the next record.  The caller ensures that its sequence is the next one."""
        self.seq = seq = record.seq
        self.value = value = link(self.value, record)
        if not seq % MARK_EVERY:
            self._marks += value[:_MARK]

    def mark(self, seq: int) -> str:
        """Return the mark at a multiple of MARK_EVERY as 16 hex digits, '' if it is not kept (any more)."""
        index = seq // MARK_EVERY - self._first
        return self._marks[_MARK * index : _MARK * (index + 1)].hex() if index >= 0 else ""

    def forget(self, upto: int) -> None:
        """Drop the marks up to this sequence."""
        gone = upto // MARK_EVERY + 1 - self._first
        if gone > 0:
            del self._marks[: _MARK * gone]
            self._first += gone

    def marks(self, most: int) -> tuple[int, str]:
        """Return the distance between marks in records, and the marks as hex digits: all, or every 2nd, 4th … to stay within
        `most`."""
        every, step = MARK_EVERY, 1
        while len(self._marks) // _MARK > most * step:
            every, step = 2 * every, 2 * step
        begin = -self._first % step
        return every, "".join(
            self.mark((self._first + i) * MARK_EVERY) for i in range(begin, len(self._marks) // _MARK, step)
        )


def mark_places(after: int, upto: int, every: int) -> range:
    """Return the sequences of a seal's marks."""
    return range((after // every + 1) * every, upto + 1, every)


# --- seals ------------------------------------------------------------------------------------------------------------

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
        unsigned = LogSealed(
            upto=chain.seq,
            chain=chain.value.hex(),
            key=self.public,
            signature="",
            after=after,
            every=every,
            marks=marks,
        )
        return msgspec.structs.replace(unsigned, signature=self.sign(seal_statement(cluster, epoch, unsigned)).hex())

    def sign(self, text: bytes) -> bytes:
        """Return the key's signature of a text."""
        signature: bytes = self._pair.sign(text)
        return signature


def new_seed() -> bytes:
    """Return the seed of a new key, as it is kept in a file."""
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_CLUSTER)
    return seed


def seal_statement(cluster: str, epoch: int, seal: LogSealed) -> bytes:
    """Return the signed text: lines, so that a seal can be checked without our code."""
    fields = ("dorm seal 1", cluster, epoch, seal.upto, seal.chain, seal.after, seal.every, seal.marks)
    return "".join(f"{word}\n" for word in fields).encode()


def is_signed_seal(cluster: str, epoch: int, seal: LogSealed) -> bool:
    """Return whether the seal, as it is, was signed with the key that it names."""
    try:
        verifier = VerifyKey(public_bytes(seal.key))
        verifier.verify(seal_statement(cluster, epoch, seal), bytes.fromhex(seal.signature))
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


# --- rounds -----------------------------------------------------------------------------------------------------------

_NONE = "0" * SIGNATURE_DIGITS
_FIELD = msgspec.msgpack.encode("signature") + msgspec.msgpack.encode(_NONE)[:-SIGNATURE_DIGITS]
"""The encoded bytes before the signature.  Fields are sorted by name, so nothing that a user wrote comes after it."""


def signed_round(key: SealKey, event: Round, previous: int) -> Round:
    """Return the round, signed, to be stored directly after the record `previous` of the rounds' subject."""
    unsigned = msgspec.structs.replace(event, previous=previous, signature=_NONE)
    signature = key.sign(_round_statement(previous, encode(unsigned)))
    return msgspec.structs.replace(unsigned, signature=signature.hex())


def is_round_signed_by(body: bytes, previous: int, keys: Iterable[str]) -> bool:
    """Return whether one of these public keys signed the round with this body, to come directly after `previous`."""
    begin = body.rfind(_FIELD) + len(_FIELD)
    end = begin + SIGNATURE_DIGITS
    if begin < len(_FIELD) or end > len(body):
        return False
    try:
        signature = bytes.fromhex(body[begin:end].decode())
    except (ValueError, UnicodeDecodeError):
        return False
    statement = _round_statement(previous, body[:begin] + _NONE.encode() + body[end:])
    for key in keys:
        try:
            VerifyKey(public_bytes(key)).verify(statement, signature)
        except (CryptoError, KeyUnusableError, ValueError, TypeError):
            continue
        return True
    return False


def _round_statement(previous: int, body: bytes) -> bytes:
    return b"dorm round 1\n%d\n" % previous + body


# --- cuts -------------------------------------------------------------------------------------------------------------


def signed_cut(key: SealKey, cut: LogRotated) -> LogRotated:
    """Return the cut, signed with this key."""
    unsigned = msgspec.structs.replace(cut, key=key.public, signature="")
    return msgspec.structs.replace(unsigned, signature=key.sign(cut_statement(unsigned)).hex())


def cut_statement(cut: LogRotated) -> bytes:
    """Return the signed text: lines, so that a cut can be checked without our code."""
    fields = ("dorm cut 1", cut.epoch, cut.after, cut.upto, cut.chain, cut.snapshot, cut.archive, cut.bytes)
    return "".join(f"{word}\n" for word in fields).encode()


def is_signed_cut(cut: LogRotated) -> bool:
    """Return whether the cut, as it is, was signed with the key that it names."""
    try:
        verifier = VerifyKey(public_bytes(cut.key))
        verifier.verify(cut_statement(cut), bytes.fromhex(cut.signature))
    except (CryptoError, ValueError, TypeError):
        return False
    return True
