"""What is in a shipped folder: a sorted list of its entries, and the blobs that hold their bytes.

    File     path, whether it can be executed, and the parts of blobs that are its content, in order
    Link     path, and a target within the folder
    Folder   path of an empty folder; others follow from the paths in them

The SHA-256 of a manifest's bytes names the folder as a whole.  It is what a spec holds, so it has to follow from the folder
alone: entries are sorted by path, times and owners are left out, and of a mode only the executable bit is kept.

A manifest comes from a client, and a node lays out the folder that it describes.  `decode` therefore refuses everything
that could leave the folder, or make two entries one: absolute paths, `..`, entries below a file or a link, the same
path twice, links that lead out of the folder.

    ManifestError    the bytes are not a manifest, or no node lays it out; the message names the entry
"""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from events.errors import DormError
from events.quantities import short
from events.workdir.limits import BLOB, DEEPEST, LONGEST_PATH, MOST_BYTES, MOST_FILES
from events.workdir.sealing import hash_of

VERSION = 1
_HASH_BYTES = 32


class ManifestError(DormError, ValueError):
    """The bytes are not a manifest, or no node lays it out."""

    code = "workdir.malformed"


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range of a blob."""

    blob: int
    """Its place in `Manifest.blobs`."""
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
    words = path.split("/")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    if "\x00" in path or any(word in ("", ".", "..") for word in words):
        return "is not a path within the folder"
    if size > LONGEST_PATH or any(len(word.encode()) > 255 for word in words):
        return f"is longer than {LONGEST_PATH} bytes, or has a name of more than 255"
    return f"lies more than {DEEPEST} folders deep" if len(words) > DEEPEST else ""


def link_fault(path: str, target: str) -> str:
    """Return what is wrong with a link, in words that follow its path; "" if it stays within the folder.

    `..` may only come first in a target.  The folder of the link itself is a real one, so these steps go to a real one too,
    which must be within; what follows only descends.  After a name, `..` would go up from wherever another link leads."""
    words = target.split("/")
    if not target or "\x00" in target or target.startswith("/"):
        return f"is a link to {short(target)}, which is not a relative path"
    up = next((index for index, word in enumerate(words) if word != ".."), len(words))
    try:
        size = len(target.encode())
    except UnicodeEncodeError:
        return "is a link to a name that is not UTF-8"
    if ".." in words[up:]:
        return f"is a link to {short(target)}: `..` may only come first in it"
    if up > path.count("/"):
        return f"is a link to {short(target)}, which leads out of the folder"
    return f"is a link to more than {LONGEST_PATH} bytes" if size > LONGEST_PATH else ""
