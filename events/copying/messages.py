"""Questions about files of apps, and their answers, in MessagePack.

Reading is stateless: each question names a place and where to begin, so an interrupted copy continues with another
question, to another agent if necessary.  An upload is a file under an id of its own, out of the app's sight, into which
blocks are written in any order; the last step verifies its digest and renames it to its place.  Each step may be
repeated.

    files   ListFiles → Listing…            put   WriteBlock   → Stored
            ReadFile  → Block, Zeros… Tail        CommitUpload → Stored

Any question may be answered by a `Refusal`.  A server that guards subjects decides who may ask: the subject names the tenant
whose files these are, and questions that write have a subject of their own (`dorm.security.roles`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from events.copying.blocks import BLOCK
from events.limits import Moment, Name, Number, Slot

Area = Literal["outputs", "checkpoints", "work"]
"""The app's outputs and its checkpoints, which all nodes share; the private folder of one container, on its node."""
AREAS: tuple[Area, ...] = ("outputs", "checkpoints", "work")
LONGEST_PATH = 4096
LARGEST = 2**44
"""Bytes of the largest file that is copied: 16 TiB."""
MOST_FILES = 100_000
"""Files and folders in one listing."""
FILES, PUT = "files", "put"
"""What follows the node in the subject of a question (`events.subjects.ask`)."""

RelativePath = Annotated[str, msgspec.Meta(max_length=LONGEST_PATH)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
UploadId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
HexDigest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file or a folder of an app."""

    app: Name
    area: Area
    path: RelativePath = ""
    """With slashes between names; "" for the area itself."""
    generation: Number = 0
    """Of `work`: which container's."""
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
    """Where it is to be once it is complete."""
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
