"""Valid lists of a folder's files, and that nothing else is laid out."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from events.workdir import (
    BLOB,
    File,
    Folder,
    Link,
    Manifest,
    ManifestError,
    Part,
    decode,
    encode,
    hash_of,
    open_blob,
    seal_blob,
)
from tests.errors import raises

_BLOB = hashlib.sha256(b"x").digest()


def made(*entries: File | Link | Folder, version: int = 1, blobs: tuple[bytes, ...] = (_BLOB,)) -> bytes:
    return encode(Manifest(version, list(blobs), list(entries)))[1]


def test_a_folder_is_read_as_it_was_written() -> None:
    whole = made(
        Folder("data"),
        Link("latest", "src/a.py"),
        File("src/a.py", False, [Part(0, 0, 1)]),
        File("src/deep/run.sh", True, []),
        Link("src/deep/up", "../../data"),
    )
    manifest = decode(whole)
    assert encode(manifest)[1] == whole
    assert (manifest.files, manifest.size, manifest.names()) == (2, 1, [_BLOB.hex()])


HOSTILE = {
    "absolute": made(File("/etc/passwd", False, [])),
    "upwards": made(File("../x", False, [])),
    "upwards within": made(File("a/../../x", False, [])),
    "no name": made(File("a//b", False, [])),
    "here": made(File("./a", False, [])),
    "nul": made(File("a\0b", False, [])),
    "too long": made(File("a" * 256, False, [])),
    "too deep": made(File("/".join("a" * 70), False, [])),
    "twice": made(File("a", False, []), File("a", False, [])),
    "not sorted": made(File("b", False, []), File("a", False, [])),
    "below a file": made(File("a", False, []), File("a/b", False, [])),
    "below a link": made(Link("a", "c"), File("a/b", False, [])),
    "below an empty folder": made(Folder("a"), File("a/b", False, [])),
    "link that is absolute": made(Link("a", "/etc")),
    "link that leads out": made(Link("a/b", "../../etc")),
    "link that goes up after a name": made(Link("a/b", "l/../../..")),
    "link to nothing": made(Link("a", "")),
    "a blob that is not listed": made(File("a", False, [Part(1, 0, 1)])),
    "a part before the blob": made(File("a", False, [Part(0, -1, 1)])),
    "a part that is too large": made(File("a", False, [Part(0, 0, BLOB + 1)])),
    "an empty part": made(File("a", False, [Part(0, 0, 0)])),
    "no hash": made(blobs=(b"x",)),
    "no manifest": b"\x81\xa1a\x01",
    "no MessagePack": b"\xc1",
    "no text": msgspec.msgpack.encode({"version": 1, "blobs": [], "entries": [["file", 1, False, []]]}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_paths_out_of_the_folder_are_refused(name: str) -> None:
    with raises(ManifestError, "workdir.malformed"):
        decode(HOSTILE[name])


def test_a_later_format_gives_advice() -> None:
    with raises(ManifestError, "workdir.too_new"):
        decode(made(version=2))


def test_a_blob_is_believed_only_by_its_hash_and_within_its_size() -> None:
    content = b"weights" * 1000
    stored = seal_blob(content)
    assert open_blob(hash_of(content), stored, len(content)) == content
    assert open_blob(hash_of(b"other"), stored, len(content)) is None
    assert open_blob(hash_of(content), stored, len(content) - 1) is None
    assert open_blob(hash_of(content), stored[:-1], len(content)) is None
    assert open_blob(hash_of(content), b"no frame", len(content)) is None
    bomb = seal_blob(bytes(64 * 2**20))
    assert open_blob(hash_of(bytes(64 * 2**20)), bomb, BLOB) is None
