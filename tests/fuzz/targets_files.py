"""Code that reads files and stored bytes: archives and their blocks, snapshots, seals, progress files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import zlib
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import nkeys

from agents.outputs import checkpoints
from agents.outputs.folders import APPS
from agents.progress import ProgressFile
from agents.runtime.interface import Key
from dorm.core.snapshot import dump, load, restore
from dorm.core.state import digest
from dorm.local.scripts import read_program
from events import subjects
from events.archive.blocks import (
    HEAD_SIZE,
    BlockDamaged,
    Head,
    head_of,
    pack_header,
    pack_records,
    pack_snapshot,
    unpack_header,
    unpack_index,
    unpack_records,
    unpack_snapshot,
)
from events.archive.blocks import Header as ArchiveHeader
from events.archive.segments import SegmentLog, open_archive
from events.chain import Chain, KeyUnusableError, SealKey, check_public, is_signed_seal
from events.codec import decode, document, encode
from events.kinds import AppCheckpointed, AppProgressed, ContainerExited, LogSealed, ProgressLinesSkipped
from events.log.records import LogDamaged, LogError, Record
from events.log.stores import SnapshotInfo, content_of
from events.workdir import Link, ManifestError
from events.workdir import decode as read_manifest
from tests.fuzz import samples
from tests.fuzz.edits import changed, encoded, json_of, spliced, strange
from tests.fuzz.target import Target, one_line

if TYPE_CHECKING:
    from tests.fuzz.edits import Source


@cache
def _folder() -> Path:
    """Return a folder, in memory if possible: these files are written very often."""
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="dorm-fuzz-", dir=shared if os.access(shared, os.W_OK) else None))
    Finalize(None, shutil.rmtree, args=(made,), exitpriority=1)  # At the end of workers, too, which run no `atexit`.
    return made


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


# --- archives -----------------------------------------------------------------------------------------------------------


def _archives(source: Source) -> bytes:
    number = source.pick(range(len(samples.archive_bytes())))
    data = samples.archive_bytes()[number]
    if source.one_in(4):
        data = data[: source.pick(range(len(data)))]
    return bytes([number]) + spliced(source, data, samples.archive_bytes())


def _check_archive(data: bytes) -> None:
    """Check that everything readable equals what was written, record for record."""
    path = _folder() / "archive.dorm"
    path.write_bytes(data[1:])
    originals = {record.seq: record for record in samples.logs()[data[0] % len(samples.logs())]} if data else {}
    try:
        _loop().run_until_complete(asyncio.wait_for(_read_archive(path, originals), 30.0))
    except LogError as error:
        one_line(error)


async def _read_archive(path: Path, originals: dict[int, Record]) -> None:
    log = await open_archive(path)
    try:
        damages = await log.damages()
        for damage in damages:
            one_line(Exception(str(damage)))
        with contextlib.suppress(LogDamaged):
            one_line(Exception(await log.torn() or "whole"))
        if isinstance(log, SegmentLog):
            async for batch in log.salvage(damages=damages):
                _same(batch, originals)
            for info in await log.snapshots.infos():
                body = await log.snapshots.get(info)
                assert body is None or content_of(body) == info.content
        async for batch in log.read():
            _same(batch, originals)
    finally:
        await log.close()


def _same(batch: list[Record], originals: dict[int, Record]) -> None:
    for record in batch:
        assert originals.get(record.seq) == record, f"record {record.seq} is not the one that was written"


# --- blocks -------------------------------------------------------------------------------------------------------------


@cache
def _blocks() -> list[bytes]:
    blocks = [pack_records(records[:40]) for records in samples.logs()]
    blocks += [pack_snapshot(*dump(restore(stop.state), build="b")) for stop in samples.stops()[::5]]
    return [*blocks, pack_header(ArchiveHeader(cluster="demo", made_by="us"))]


def _changed_blocks(source: Source) -> bytes:
    """Return a changed block with correct checksums, like a hostile file."""
    block = source.pick(_blocks())
    head = head_of(block)
    assert head is not None
    payload = block[HEAD_SIZE:]
    if not source.one_in(3):
        payload = spliced(source, payload)
    fields: dict[str, Any] = {"packed": len(payload), "crc": zlib.crc32(payload)}
    if source.one_in(3):
        field = source.pick(("count", "first", "last", "raw"))
        fields[field] = source.pick((0, 1, getattr(head, field) + 1, 2**31, 2**32 - 1))
    return msgspec.msgpack.encode([msgspec.structs.astuple(msgspec.structs.replace(head, **fields)), payload])


def _check_block(data: bytes) -> None:
    try:
        fields, payload = msgspec.msgpack.decode(data, type=tuple[list[Any], bytes])
        head = Head(*fields)
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError):
        return
    for unpack in (unpack_records, unpack_snapshot, unpack_header, unpack_index):
        try:
            unpack(head, payload)
        except BlockDamaged as error:
            one_line(error)


# --- snapshots ----------------------------------------------------------------------------------------------------------


@cache
def _snapshots() -> list[tuple[SnapshotInfo, bytes]]:
    return [dump(restore(stop.state), build="b") for stop in samples.stops()]


def _changed_snapshots(source: Source) -> bytes:
    info, body = source.pick(_snapshots())
    body = spliced(source, body)
    tree = msgspec.to_builtins(info)
    if source.one_in(2):
        tree["content"] = content_of(body)
    if source.one_in(3):
        tree[source.pick(tuple(tree))] = source.pick((strange(source), info.seq + 1))
    try:
        return msgspec.msgpack.encode([msgspec.msgpack.encode(tree), body])
    except (TypeError, ValueError, ArithmeticError, RecursionError):
        return b""


def _check_snapshot(data: bytes) -> None:
    """Check that an accepted state is the stored one."""
    try:
        described, body = msgspec.msgpack.decode(data, type=tuple[bytes, bytes])
        info = msgspec.msgpack.decode(described, type=SnapshotInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    state = load(info, body, build="b")
    if state is not None:
        assert digest(state) == info.digest
        assert (state.seq, state.time) == (info.seq, info.time)


# --- seals --------------------------------------------------------------------------------------------------------------


@cache
def _sealed() -> LogSealed:
    seed = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_CLUSTER)
    return SealKey(seed).seal(samples.CLUSTER, 1, Chain(70, bytes(32)), 0)


def _seals(source: Source) -> bytes:
    tree = msgspec.to_builtins(_sealed())
    if source.one_in(2):
        return encoded(source, changed(source, tree))
    field = source.pick(("key", "signature", "chain", "marks"))
    tree[field] = spliced(source, tree.get(field, ""), [tree["signature"]])
    return encoded(source, tree)


def _check_seal(data: bytes) -> None:
    """Check that only signed content verifies."""
    try:
        seal = msgspec.convert(document(Record(1, 1, "", data)), LogSealed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return
    if is_signed_seal(samples.CLUSTER, 1, seal):
        signed = _sealed()
        told = [(one.upto, one.chain, one.after, one.every, one.marks) for one in (seal, signed)]
        assert told[0] == told[1], f"{seal} counts as signed"
    try:
        check_public(seal.key)
    except KeyUnusableError as error:
        one_line(error)


# --- progress -----------------------------------------------------------------------------------------------------------

_KEY = Key("digits-abcdef", 3, 0)


def _progress(source: Source) -> bytes:
    if source.one_in(3):
        tree = {"step": 12, "loss": 0.3, "samples_per_s": 9, "checkpoint": 12}
        return "\n".join(json_of(changed(source, tree)) for _ in range(4)).encode(errors="surrogatepass")
    data = spliced(source, source.pick(samples.PROGRESS), samples.PROGRESS)
    return data + b"x" * 600_000 + data if source.one_in(500) else data


def _check_progress(data: bytes) -> None:
    """Check that every fact from the file is one that every reader of the log accepts."""
    path = _folder() / "progress.jsonl"
    path.write_bytes(data[: len(data) // 2])
    file = ProgressFile(_KEY, path, 0.0)
    facts = file.read(0.0)
    with path.open("ab") as more:
        more.write(data[len(data) // 2 :])
    facts += file.read(1.0, final=True)
    assert len(facts) <= 3 * (data.count(b"\n") + 1)
    for fact in facts:
        kind = type(fact).__name__
        read = decode(Record(1, 1, subjects.fact(samples.CLUSTER, kind, "node-1"), encode(fact)))
        assert isinstance(read, AppProgressed | AppCheckpointed | ProgressLinesSkipped), read


# --- notes of checkpoints -----------------------------------------------------------------------------------------------

_NOTE: dict[str, Any] = {
    "generation": 2,
    "files": {"step-30.pt": [9, 10**18, 0], "hf/checkpoint-30/a": [1, 10**18, 1], "step-40.pt": [3, 10**18]},
    "judged": 2,
    "doubt": {"files": ["step-40.pt"], "more": 1, "before": True, "aside": ".doubtful/generation-2"},
}


def _notes(source: Source) -> bytes:
    return encoded(source, changed(source, _NOTE, alike=source.one_in(2)))


def _check_note(data: bytes) -> None:
    """Check that what an agent says because of a note is what every reader of the log accepts."""
    root, app = _folder() / "shared", "app-abcdef"
    (root / APPS / app).mkdir(parents=True, exist_ok=True)
    (root / app).mkdir(exist_ok=True)
    (root / app / "step-40.pt").write_text("torn")
    (root / APPS / app / "believed").write_bytes(data)
    known = checkpoints.noted(root, app)
    for doubt in (checkpoints.look(root, app, 2), checkpoints.judge(root, app, 3, fall_back=len(data) % 2 == 0)):
        event = ContainerExited(app=app, generation=3, slot=0, node="node-1", doubt=doubt)
        read = decode(Record(1, 1, subjects.fact(samples.CLUSTER, "ContainerExited", "node-1"), encode(event)))
        assert isinstance(read, ContainerExited), read
        assert read.doubt == doubt
        assert doubt is None or known is not None


# --- shipped folders ----------------------------------------------------------------------------------------------------

_FOLDER: dict[str, Any] = {
    "version": 1,
    "blobs": [bytes(32), b"\x01" * 32],
    "entries": [
        ["folder", "data"],
        ["file", "src/a.py", False, [[0, 0, 9]]],
        ["file", "src/run.sh", True, [[0, 9, 4], [1, 0, 7]]],
        ["link", "to", "src/a.py"],
    ],
}


def _manifests(source: Source) -> bytes:
    data: bytes = msgspec.msgpack.encode(_FOLDER)
    return (
        spliced(source, data) if source.one_in(4) else encoded(source, changed(source, _FOLDER, alike=source.one_in(2)))
    )


def _check_manifest(data: bytes) -> None:
    """Check that accepted entries stay within their folder: each path only descends, and each link ends inside."""
    try:
        manifest = read_manifest(data)
    except ManifestError as error:
        one_line(error)
        return
    root = "/root"
    for entry in manifest.entries:
        place = os.path.normpath(f"{root}/{entry.path}")
        assert place == f"{root}/{entry.path}"
        if isinstance(entry, Link):
            assert f"{os.path.normpath(f'{os.path.dirname(place)}/{entry.target}')}/".startswith(f"{root}/")
    paths = [entry.path for entry in manifest.entries]
    assert paths == sorted(set(paths))


# --- programs -----------------------------------------------------------------------------------------------------------

_TOKENS = (
    "python", " train.py", "bash ", "-c ", "run.sh", "\n", "\\\n", "'", '"', "$", "`", "(", ")", "|", "&&", ";", "cd ", "..",
    "/", "source ", "env ", "-C ", "=", "A=b ", "srun ", "-m ", "x.y", "-- ", "tee ", "> ", "#", "#SBATCH -n 2", "#!/bin/sh",
    "\0", "\r\n", "import train", "from . import a", "from .... import b", "open('..')", "~", "*", "timeout 5 ", "a" * 600,
    "../" * 40,
)  # fmt: skip


def _programs(source: Source) -> bytes:
    """Return a command and two scripts, of words that mean something there."""
    texts = ["".join(source.pick(_TOKENS) for _ in range(1 + source.below(10))) for _ in range(3)]
    return spliced(source, "\x1e".join(texts).encode()) if source.one_in(3) else "\x1e".join(texts).encode()


def _check_program(data: bytes) -> None:
    """Check that reading ends, and stays within the folder."""
    command, shell, python = [*data.split(b"\x1e"), b"", b""][:3]
    folder = _folder() / "program"
    folder.mkdir(exist_ok=True)
    (folder / "run.sh").write_bytes(shell)
    (folder / "train.py").write_bytes(python)
    (_folder() / "outside.py").touch()
    reading = read_program(command.decode("utf-8", "replace").split() or ["bash", "run.sh"], folder)
    assert set(reading.scripts) <= {"run.sh", "train.py"}


TARGETS = [
    Target("archive", 1, _archives, _check_archive),
    Target("block", 14, _changed_blocks, _check_block),
    Target("snapshot", 4, _changed_snapshots, _check_snapshot),
    Target("seal", 4, _seals, _check_seal),
    Target("progress", 6, _progress, _check_progress),
    Target("program", 2, _programs, _check_program),
    Target("note", 1, _notes, _check_note),
    Target("manifest", 2, _manifests, _check_manifest),
]
