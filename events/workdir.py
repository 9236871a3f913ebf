"""A project folder as the cluster has it: bytes named by their hash, which any node can check and lay out again.

*The manifest* is a sorted list of the folder's entries, and of the blobs that hold their bytes.

    File     path, whether it can be executed, and the parts of blobs that are its content, in order
    Link     path, and a target within the folder
    Folder   path of an empty folder; others follow from the paths in them

The SHA-256 of a manifest's bytes names the folder as a whole.  It is what a spec holds, so it has to follow from the
folder alone: entries are sorted by path, times and owners are left out, and of a mode only the executable bit is kept.

A manifest comes from a client, and a node lays out the folder that it describes.  `decode` therefore refuses
everything that could leave the folder, or make two entries one: absolute paths, `..`, entries below a file or a link,
the same path twice, links that lead out of the folder.

    ManifestError    the bytes are not a manifest, or no node lays it out; the message names the entry

*Bundles* let small files share a blob with those that come next in the order of paths: a message for each small file
would cost a request each, there and on every node.  Where a bundle ends follows from the paths: a file that is added,
removed or changed leaves all bundles but its own as they are, and only that one is sent again.  Large files are cut
into pieces of their own.

*Limits* say how large a folder may be, and how long the cluster keeps folders that no app names.  A cluster may have
limits of its own (`dorm files limits`); beyond `MOST_FILES` and `MOST_BYTES` nothing of it works, whatever they say.

*Blobs* are stored compressed (zstd), under the SHA-256 of what they hold.  A blob comes from anyone who may write to
the store, so it is opened within bounds and believed only if its hash is right.

Pure.  Clients pack (`dorm.workdir`), agents fetch and place (`agents.runtime.workdir`), and the blobs lie next to the
log (`events.log.stores`).
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Annotated

import msgspec
import zstandard

from events.errors import DormError
from events.quantities import short

# --- the manifest -----------------------------------------------------------------------------------------------------

VERSION = 1
_HASH_BYTES = 32


class ManifestError(DormError, ValueError):
    """The bytes are not a manifest, or no node lays it out."""

    code = "workdir.malformed"


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range of a blob."""

    blob: int
    """Index in `Manifest.blobs`."""
    offset: int
    size: int


class File(msgspec.Struct, frozen=True, array_like=True, tag="file"):
    path: str
    executable: bool
    parts: list[Part]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(part.size for part in self.parts)


class Link(msgspec.Struct, frozen=True, array_like=True, tag="link", gc=False):
    path: str
    target: str


class Folder(msgspec.Struct, frozen=True, array_like=True, tag="folder", gc=False):
    path: str


Entry = File | Link | Folder


class Manifest(msgspec.Struct, frozen=True):
    """A folder's content."""

    version: int
    blobs: list[bytes]
    """SHA-256 of each blob, in the order in which the entries name them first."""
    entries: list[Entry]

    def names(self) -> list[str]:
        """Return the names of all blobs, in hex."""
        return [blob.hex() for blob in self.blobs]

    @property
    def size(self) -> int:
        """The size of all files."""
        return sum(entry.size for entry in self.entries if isinstance(entry, File))

    @property
    def files(self) -> int:
        return sum(1 for entry in self.entries if isinstance(entry, File))


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Manifest)


def encode(manifest: Manifest) -> tuple[str, bytes]:
    """Return the manifest's name, which is the folder's hash, and its bytes."""
    content = _encoder.encode(manifest)
    return hash_of(content), content


def decode(content: bytes) -> Manifest:
    """Return a manifest that can be laid out in an empty folder without leaving it.  Raises ManifestError."""
    try:
        manifest = _decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"it is not a list of a folder's files: {error}") from None
    if manifest.version != VERSION:
        raise ManifestError(
            f"a later release packed it (format {manifest.version}): upgrade the agents, or ship it with the cluster's "
            "own release",
            code="workdir.too_new",
        )
    if len(manifest.entries) > MOST_FILES or len(manifest.blobs) > MOST_BYTES // BLOB + MOST_FILES:
        raise ManifestError(f"it has more than {MOST_FILES:,} files", code="workdir.too_many_files")
    if any(len(blob) != _HASH_BYTES for blob in manifest.blobs):
        raise ManifestError("it names a blob by a text that is not a SHA-256")
    _check_entries(manifest)
    return manifest


def _check_entries(manifest: Manifest) -> None:
    before = ""
    leaves: set[str] = set()
    """Paths of files and links, below which nothing can be."""
    folders: set[str] = set()
    for entry in manifest.entries:
        path = entry.path
        if fault := path_fault(path):
            raise ManifestError(f"{short(path)} {fault}")
        if path <= before:
            raise ManifestError(f"{short(path)} comes twice, or not in order")
        before = path
        parents = [str(parent) for parent in PurePosixPath(path).parents][:-1]
        if not leaves.isdisjoint(parents) or path in folders:
            raise ManifestError(f"{short(path)} lies below a file or a link, or is a file and a folder")
        folders.update(parents)
        match entry:
            case File():
                leaves.add(path)
                _check_parts(entry, len(manifest.blobs))
            case Link():
                leaves.add(path)
                if fault := link_fault(path, entry.target):
                    raise ManifestError(f"{short(path)} {fault}")
            case Folder():
                # Listed because it is empty, so nothing may lie below it either.
                leaves.add(path)
    if manifest.size > MOST_BYTES:
        raise ManifestError(f"its files have more than {MOST_BYTES:,} bytes", code="workdir.too_large")


def _check_parts(file: File, blobs: int) -> None:
    for part in file.parts:
        if not (0 <= part.blob < blobs and part.offset >= 0 and part.size > 0 and part.offset + part.size <= BLOB):
            raise ManifestError(f"{short(file.path)} names a part of a blob that can't be one")


def path_fault(path: str) -> str:
    """Return what is wrong with a path, in words that follow it; "" if nothing is."""
    parts = path.split("/")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    if "\x00" in path or any(word in ("", ".", "..") for word in parts):
        return "is not a path within the folder"
    if size > LONGEST_PATH or any(len(word.encode()) > 255 for word in parts):
        return f"is longer than {LONGEST_PATH} bytes, or has a name of more than 255"
    return f"lies more than {DEEPEST} folders deep" if len(parts) > DEEPEST else ""


def link_fault(path: str, target: str) -> str:
    """Return what is wrong with a link, in words that follow its path; "" if it stays within the folder.

    `..` may only come first in a target.  The folder of the link itself is a real one, so these steps go to a real one too,
    which must be within; what follows only descends.  After a name, `..` would go up from wherever another link leads."""
    parts = target.split("/")
    if not target or "\x00" in target or target.startswith("/"):
        return f"is a link to {short(target)}, which is not a relative path"
    up = next((index for index, word in enumerate(parts) if word != ".."), len(parts))
    try:
        size = len(target.encode())
    except UnicodeEncodeError:
        return "is a link to a name that is not UTF-8"
    if ".." in parts[up:]:
        return f"is a link to {short(target)}: `..` may only come first in it"
    if up > path.count("/"):
        return f"is a link to {short(target)}, which leads out of the folder"
    return f"is a link to more than {LONGEST_PATH} bytes" if size > LONGEST_PATH else ""


# --- bundles ----------------------------------------------------------------------------------------------------------

SMALL = 64 * 1024
"""Bytes: a file below this shares a blob."""
FULL = 256 * 1024
"""Bytes beyond which a bundle takes no more files."""
_EVERY = 32
"""About how many files a bundle has at most."""


def ends_bundle(path: str) -> bool:
    """Return whether a bundle ends after the file with this path."""
    return hashlib.blake2b(path.encode(), digest_size=2).digest()[0] % _EVERY == 0


def pieces(size: int) -> list[tuple[int, int]]:
    """Return offset and length of each piece of a large file."""
    return [(offset, min(BLOB, size - offset)) for offset in range(0, size, BLOB)]


# --- limits -----------------------------------------------------------------------------------------------------------

MIB = 2**20
BLOB = 512 * 1024
"""Bytes of the largest blob before compression."""
LARGEST_MANIFEST = 896 * 1024
"""Bytes of a manifest as it is stored: it is one message, and every server accepts one MiB."""
UNPACKED_MANIFEST = 32 * MIB
MOST_FILES = 100_000
MOST_BYTES = 64 * 1024 * MIB
LONGEST_PATH = 1024
"""Bytes of a path within the folder, and of a link's target."""
DEEPEST = 64
"""Folders within each other."""


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of the cluster."""

    file: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 256 * MIB
    """Bytes of one file."""
    total: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 1024 * MIB
    """Bytes of all files of one folder."""
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_FILES)] = 20_000
    """Files, links and empty folders."""
    quota: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 512 * MIB
    """Bytes of all that one tenant has shipped, as the store keeps it."""
    quotas: Annotated[
        dict[str, Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]], msgspec.Meta(max_length=10_000)
    ] = {}
    """The same for tenants with a quota of their own, by their tokens."""
    keep_s: Annotated[float, msgspec.Meta(ge=3600, le=10 * 365 * 86_400)] = 7 * 86_400.0
    """Seconds for which the cluster keeps a folder that no app names, since it was shipped last."""

    def quota_of(self, tenant: str) -> int:
        """Return the quota of a tenant, given as the token of a subject, in bytes."""
        return self.quotas.get(tenant, self.quota)


# --- blobs ------------------------------------------------------------------------------------------------------------

_LEVEL = 3


def hash_of(content: bytes) -> str:
    """Return the name of a blob: the SHA-256 of its content, in hex."""
    return hashlib.sha256(content).hexdigest()


def seal_blob(content: bytes) -> bytes:
    """Return a blob as it is stored."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(content)


def open_blob(name: str, stored: bytes, most: int) -> bytes | None:
    """Return the content of a stored blob; None if it does not match its name, or is larger than `most` bytes."""
    try:
        # A frame states its size, so a small one that unpacks to gigabytes is refused before it takes any memory.
        if not 0 <= zstandard.frame_content_size(stored) <= most:
            return None
        content = zstandard.ZstdDecompressor().decompress(stored, max_output_size=most)
    except zstandard.ZstdError:
        return None
    return content if hash_of(content) == name else None
