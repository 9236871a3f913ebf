"""Copying files of apps (`dorm cp`), as clients ask agents for them: outputs, checkpoints, and what a container has in its own
folder.  Project folders that are shipped to the cluster are `events.workdir`.

Questions and answers are MessagePack.  Reading is stateless: each question names a place and where to begin, so an
interrupted copy continues with another question, to another agent if necessary.  An upload is a file under an id of
its own, out of the app's sight, into which blocks are written in any order; the last step verifies its digest and
renames it to its place.  Each step may be repeated.

    files   ListFiles → Listing…            put   WriteBlock   → Stored
            ReadFile  → Block, Zeros… Tail        CommitUpload → Stored

Any question may be answered by a `Refusal`.  A server that guards subjects decides who may ask: the subject names the
tenant whose files these are, and questions that write have a subject of their own (`dorm.security.roles`).

The digest of a file is SHA-256 over the file's blocks, each as 1 and its bytes or, if all of them are zero, as 0
alone, and over its size.  So a hole of terabytes costs neither side anything, and a file has one digest however its
holes are stored.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from events.limits import Moment, Name, Number, Slot

if TYPE_CHECKING:
    from collections.abc import Iterator


# --- files in blocks --------------------------------------------------------------------------------------------------

BLOCK: Final = 512 * 1024
"""Bytes: half of the largest message that every server takes (`events.limits`)."""
_MOST_AT_ONCE = 65_536


class FileDigest:
    """The digest of a file whose blocks are added in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, block: bytes) -> None:
        """Add a block; only the last one may be shorter than `BLOCK`."""
        if is_zeros(block):
            self._hash.update(b"\0")
        else:
            self._hash.update(b"\1")
            self._hash.update(block)

    def add_zeros(self, blocks: int) -> None:
        """Add whole blocks of zeros."""
        while blocks > 0:
            now = min(blocks, _MOST_AT_ONCE)
            self._hash.update(bytes(now))
            blocks -= now

    def of(self, size: int) -> str:
        """Return the digest of the file of this size, 64 hex digits."""
        whole = self._hash.copy()
        whole.update(size.to_bytes(8, "big"))
        return whole.hexdigest()


def is_zeros(block: bytes) -> bool:
    """Return whether all bytes are zero."""
    return block.count(0) == len(block)


def next_block(file: int, at: int, size: int) -> bytes | int:
    """Return the block at `at` of an open file of this size, b"" if it is shorter than that by now, or how many whole blocks
    from there on are a hole.  Blocks.  Raises OSError."""
    hole = (_data_from(file, at, size) - at) // BLOCK
    if hole:
        return hole
    block = bytearray()
    while len(block) < min(BLOCK, size - at):
        more = os.pread(file, min(BLOCK, size - at) - len(block), at + len(block))
        if not more:
            return b""
        block += more
    return bytes(block)


def _data_from(file: int, at: int, size: int) -> int:
    """Return where the next data begins, at or after `at`; `size` if there is none."""
    try:
        return min(size, os.lseek(file, at, os.SEEK_DATA))
    except OSError:  # There is none up to the end; or the file system can't tell, and then says EINVAL.
        return size if _knows_holes(file) else at


def _knows_holes(file: int) -> bool:
    try:
        os.lseek(file, 0, os.SEEK_HOLE)
    except OSError:
        return False
    return True


def write_at(file: int, data: bytes, at: int) -> None:
    """Write all of some bytes into an open file.  Blocks.  Raises OSError."""
    written = 0
    while written < len(data):
        written += os.pwrite(file, data[written:], at + written)


def blocks_of(file: int, size: int, *, upto: int | None = None) -> Iterator[bytes | int]:
    """Yield the blocks of an open file from its start, holes as numbers of whole blocks.  Blocks.  Raises OSError, and
    EOFError if the file is shorter than `size` by now."""
    at, end = 0, size if upto is None else min(upto, size)
    while at < end:
        block = next_block(file, at, size)
        if isinstance(block, int):
            block = min(block, -(-(end - at) // BLOCK))
        elif not block:
            raise EOFError(f"it is shorter than {size} bytes by now")
        at += block * BLOCK if isinstance(block, int) else len(block)
        yield block


def digest_of(file: int, size: int, *, upto: int | None = None) -> FileDigest:
    """Return the digest of an open file's first bytes: of all of it, or `upto` a multiple of `BLOCK`.  Blocks.  Raises as
    `blocks_of`."""
    digest = FileDigest()
    for block in blocks_of(file, size, upto=upto):
        if isinstance(block, int):
            digest.add_zeros(block)
        else:
            digest.add(block)
    return digest


# --- questions and answers --------------------------------------------------------------------------------------------

Area = Literal["outputs", "checkpoints", "work"]
"""The app's outputs and its checkpoints, which all nodes share; the private folder of one container, on its node."""
AREAS: tuple[Area, ...] = ("outputs", "checkpoints", "work")
LONGEST_PATH = 4096
LARGEST = 2**44
"""Bytes of the largest file that is copied: 16 TiB."""
MOST_FILES = 100_000
"""Files and folders in one listing."""
FILES, PUT = "files", "put"
"""Tokens that follow the node in the subject of a question (`events.subjects.ask`)."""

RelativePath = Annotated[str, msgspec.Meta(max_length=LONGEST_PATH)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
UploadId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
HexDigest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file or a folder of an app."""

    app: Name
    area: Area
    path: RelativePath = ""
    """Path with slashes between names; "" for the area itself."""
    generation: Number = 0
    """Generation of the container whose `work` it is."""
    slot: Slot = 0


class ListFiles(msgspec.Struct, frozen=True, tag=True):
    """What is at a place: the file, or the folder and all that is in it."""

    place: Place


class ReadFile(msgspec.Struct, frozen=True, tag=True):
    """The bytes of a file from an offset on, which is a multiple of `BLOCK`.  Refused if the file is no longer the one that
    was listed."""

    place: Place
    offset: Offset
    size: Offset
    modified: Moment
    """UTC nanoseconds."""


class WriteBlock(msgspec.Struct, frozen=True, tag=True):
    """Bytes of an upload.  Those that no block covers are zeros."""

    place: Place
    """Place of the complete file."""
    upload: UploadId
    at: Offset
    data: Annotated[bytes, msgspec.Meta(max_length=BLOCK)]


class CommitUpload(msgspec.Struct, frozen=True, tag=True):
    """Verify an upload and put it in its place, in one step."""

    place: Place
    upload: UploadId
    size: Offset
    digest: HexDigest
    modified: Moment = 0
    """UTC nanoseconds, which the file gets; 0 for now."""
    executable: bool = False


Kind = Literal["file", "folder", "other"]


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file or folder."""

    path: str
    """Relative to the place that was asked about; "" for that place itself."""
    kind: Kind
    """`other` can't be copied: a pipe, a device, a socket, a link that leads nowhere, to a folder or out of the area."""
    size: int = 0
    modified: int = 0
    """UTC nanoseconds."""
    executable: bool = False
    note: str = ""
    """Why it can't be copied."""


class Listing(msgspec.Struct, frozen=True, tag=True):
    """Some of the entries, in order of paths."""

    entries: list[FileEntry]


class Block(msgspec.Struct, frozen=True, tag=True):
    """The next bytes: `BLOCK` of them, or fewer at the end of the file."""

    data: bytes


class Zeros(msgspec.Struct, frozen=True, tag=True):
    """A number of whole blocks of zeros, which may take no room on disk."""

    blocks: int


class Tail(msgspec.Struct, frozen=True, tag=True):
    """The end of a file; the digest covers the whole file, even if the answer began later."""

    digest: str


class Stored(msgspec.Struct, frozen=True, tag=True):
    """A step of an upload is done.  `size` is how far it reaches, in bytes."""

    size: int


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """The question can't be answered; `text` says what to do."""

    code: str
    text: str


Reading = ListFiles | ReadFile
Writing = WriteBlock | CommitUpload
Answer = Listing | Block | Zeros | Tail | Stored | Refusal

reading_decoder: msgspec.msgpack.Decoder[Reading] = msgspec.msgpack.Decoder(Reading)
writing_decoder: msgspec.msgpack.Decoder[Writing] = msgspec.msgpack.Decoder(Writing)
answer_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
encode = msgspec.msgpack.Encoder().encode
