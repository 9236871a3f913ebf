"""A state as bytes, to be taken up again later instead of folding the log from its begin.

    copy     the current state: fast, for the owner, who continues to fold
    restore  a state of its own from a copy of this process
    pack     checked, compressed, and described: may take its time in a thread
    load     the state again, or None if this build would not have folded the same

A loaded state has the digest of the dumped one, and every later record has the same effect on both.  The
second needs more than the first: a map in a field of unknown type is a map again, in the same order, whole numbers stay
whole, and keys keep their types.  MessagePack has all of that, and the fold never lets two places of a state share
something that it changes.

Schema and digest do not show that `evolve` was changed without raising the schema, by mistake or during development.
A snapshot therefore names the sources that folded it (`FOLDED_BY`), and only the same sources load it.
"""

from __future__ import annotations

import hashlib

import msgspec
import zstandard

from dorm.core.state import SCHEMA, State
from events.log.stores import SnapshotInfo, content_of

FOLDED_BY = ("events", "dorm.core")
"""The packages whose sources determine a fold; their `events.sources.fingerprint` is a snapshot's `build`."""

LARGEST = 2 << 30
"""Number of bytes of a state that are unpacked at most: a damaged or hostile body must not take all memory."""

_LEVEL = 3
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(State)


class Copy(msgspec.Struct, frozen=True):
    """A state as it was at one moment, encoded."""

    seq: int
    time: int
    encoded: bytes


def copy(state: State) -> Copy:
    """Of the state now; it may be folded on at once."""
    return Copy(state.seq, state.time, _encoder.encode(state))


def restore(taken: Copy) -> State:
    """The state as it was; of a copy that this process made, so nothing is checked."""
    return _decoder.decode(taken.encoded)


def pack(taken: Copy, *, build: str, chain: str = "", record: str = "") -> tuple[SnapshotInfo, bytes]:
    """What to put into a store.  `chain` is the log's hash chain after the copy's sequence, if it is known, and `record`
    the identity of the record there, if the store may outlive its log."""
    body = zstandard.ZstdCompressor(level=_LEVEL).compress(taken.encoded)
    info = SnapshotInfo(
        seq=taken.seq,
        time=taken.time,
        core=SCHEMA,
        build=build,
        digest=_digest(taken.encoded),
        content=content_of(body),
        size=len(body),
        chain=chain,
        record=record,
    )
    return info, body


def dump(state: State, *, build: str, chain: str = "") -> tuple[SnapshotInfo, bytes]:
    """`copy` and `pack` at once."""
    return pack(copy(state), build=build, chain=chain)


def load(info: SnapshotInfo, body: bytes, *, build: str | None) -> State | None:
    """The state; None if the snapshot differs from its claims, or was folded by another core or build.

    Without a `build`, any build of this core's version is accepted, for a log whose first records are not available.
    """
    if info.core != SCHEMA or (build is not None and info.build != build) or content_of(body) != info.content:
        return None
    try:
        if not 0 < zstandard.frame_content_size(body) <= LARGEST:
            return None
        encoded = zstandard.ZstdDecompressor().decompress(body)
        state = _decoder.decode(encoded)
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError):
        return None
    # Decoded and encoded again: a field that this core would read otherwise than it was written shows here.
    if (state.seq, state.time) != (info.seq, info.time) or _digest(_encoder.encode(state)) != info.digest:
        return None
    return state


def _digest(encoded: bytes) -> str:
    """`dorm.core.state.digest`, of what it would encode again."""
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()
