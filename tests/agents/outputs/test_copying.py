"""Copies between a client and an agent: their real code, over a bus within one process and real files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.desired import Desired
from agents.outputs import files as reading
from agents.outputs import folders
from agents.outputs.file_requests import FileAnswerer, UploadAnswerer, _Pool, answer_files
from agents.outputs.folders import CheckpointFolder
from dorm.client.files import Copied, Files, FilesRefused, Progress, Where, copy_from, copy_to, part_of
from events.copying import (
    BLOCK,
    Block,
    CommitUpload,
    FileDigest,
    FileEntry,
    ListFiles,
    Listing,
    Place,
    ReadFile,
    Refusal,
    WriteBlock,
    Zeros,
    answer_decoder,
    digest_of,
    encode,
)
from events.log.memory import MemoryBus
from events.log.records import LogUnavailable
from tests.errors import raises
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from agents.runtime.interface import Key, Runtime
    from dorm.client.client import Client
    from dorm.core.app import App
    from events.copying import Area

CLUSTER = "files"


class _Runtime:
    """Says where containers' own folders are."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def run_dir(self, key: Key) -> Path:
        return self._root / f"{key.app}-{key.generation}-{key.slot}"


class _App:
    id, name, tenant = "app-1", "app", "alice"


class Torn(MemoryBus):
    """Loses the connection after a number of pieces, a number of times."""

    pieces, outages = 3, 0

    async def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncGenerator[bytes, None]:
        count = 0
        async for piece in super().ask(subject, question, timeout=timeout):
            if self.outages and count == self.pieces:
                self.outages -= 1
                raise LogUnavailable("torn")
            count += 1
            yield piece


class Side:
    """A client and an agent."""

    def __init__(self, tmp: Path) -> None:
        self.folder = CheckpointFolder(tmp / "shared")
        self.folder.open()
        self.app = folders.folders_of(self.folder, "app-1", "alice", resume=False, cluster="")
        self.outputs, self.checkpoints = self.app.outputs, self.app.checkpoints
        self.runtime = cast("Runtime", _Runtime(tmp / "runs"))
        self.here = tmp / "here"
        self.here.mkdir()
        self.bus = Torn(lambda: 0)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        desired = Desired("node-1")
        answering = asyncio.create_task(answer_files(self.bus, CLUSTER, self.runtime, desired, self.folder))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        try:
            yield
        finally:
            answering.cancel()
            await asyncio.wait({answering})

    @property
    def files(self) -> Files:
        client: Any = type("Asker", (), {"bus": self.bus, "cluster": CLUSTER})()
        return Files(cast("Client", client))

    def where(self, area: Area = "outputs") -> Where:
        return Where(cast("App", _App()), area, ["node-1"], 2, 0)

    async def get(self, path: str, target: Path | None = None, area: Area = "outputs", **how: Any) -> Copied:
        async with self.serving():
            return await copy_from(self.files, self.where(area), path, target or self.here, **how)

    async def put(self, source: Path, path: str, area: Area = "outputs", **how: Any) -> Copied:
        async with self.serving():
            return await copy_to(self.files, source, self.where(area), path, **how)

    async def refusal(self, question: Any, *, tenant: str | None = None, writes: bool = False) -> str:
        """Return the code with which a question is refused, "" if it is answered."""
        kind = UploadAnswerer if writes else FileAnswerer
        answerer = kind(_Pool(), self.runtime, Desired("node-1"), self.folder, tenant)
        body = question if isinstance(question, bytes) else encode(question)
        found = [answer_decoder.decode(piece) async for piece in answerer(body)]
        return next((one.code for one in found if isinstance(one, Refusal)), "")


@pytest.fixture
def side(tmp_path: Path) -> Side:
    return Side(tmp_path)


class Counted(Progress):
    def __init__(self) -> None:
        self.planned, self.bytes, self.skipped = (0, 0), 0, dict[str, str]()

    def plan(self, files: int, size: int) -> None:
        self.planned = files, size

    def done(self, size: int) -> None:
        self.bytes += size

    def skip(self, path: str, why: str) -> None:
        self.skipped[path] = why


async def test_a_folder_is_copied_unchanged_and_a_second_copy_transfers_nothing(side: Side) -> None:
    (side.outputs / "run" / "deep" / "empty").mkdir(parents=True)
    (side.outputs / "run" / "model.pt").write_bytes(os.urandom(3 * BLOCK + 17))
    (side.outputs / "run" / "deep" / "nothing").touch()
    tool = side.outputs / "run" / "deep" / "tool\n#é"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    seen = Counted()
    assert await side.get("run", progress=seen) == Copied(3, 3 * BLOCK + 27, 0, 0)
    copy = side.here / "run"
    assert sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*")) == [
        "deep", "deep/empty", "deep/nothing", "deep/tool\n#é", "model.pt",
    ]  # fmt: skip
    assert (copy / "model.pt").read_bytes() == (side.outputs / "run/model.pt").read_bytes()
    assert os.access(copy / "deep/tool\n#é", os.X_OK)
    assert not os.access(copy / "model.pt", os.X_OK)
    assert (seen.planned, seen.bytes) == ((3, 3 * BLOCK + 27), 3 * BLOCK + 27)
    assert await side.get("run") == Copied(0, 0, 3, 0)
    (side.outputs / "run" / "deep" / "nothing").write_text("now")
    assert (await side.get("run")).files == 1


async def test_the_target_of_a_copy_follows_from_the_command(side: Side) -> None:
    (side.outputs / "model").write_text("m")
    await side.get("model", side.here / "renamed")
    await side.get("", side.here / "all")
    await side.get("")
    assert sorted(path.relative_to(side.here).as_posix() for path in side.here.rglob("*")) == [
        "all", "all/model", "outputs", "outputs/model", "renamed",
    ]  # fmt: skip


async def test_a_container_s_own_folder_shows_no_secret(side: Side, tmp_path: Path) -> None:
    own = tmp_path / "runs" / "app-1-2-0"
    own.mkdir(parents=True)
    (own / "secret-key").write_text("hush")
    (own / "notes").write_text("n")
    os.symlink("secret-key", own / "link")
    await side.get("", area="work")
    assert [path.name for path in (side.here / "work").iterdir()] == ["notes"]
    for name in ("secret-key", "link"):
        with raises(FilesRefused, "files.not_readable"):
            await side.get(name, area="work")


async def test_a_container_works_in_the_copy_of_a_shipped_folder(side: Side, tmp_path: Path) -> None:
    (tmp_path / "runs" / "app-1-2-0").mkdir(parents=True)
    (tmp_path / "runs" / "work").mkdir()
    (tmp_path / "runs" / "work" / "train.py").write_text("pass")
    await side.get("train.py", area="work")
    assert (side.here / "train.py").read_text() == "pass"


async def test_no_link_leads_out(side: Side, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "shadow").write_text("hush")
    links = {
        "absolute": str(outside / "shadow"), "up": "../../../../outside/shadow", "folder": str(outside), "loop": "loop",
        "gone": "nowhere", "to-folder": "run", "good": "run/model", "round": "run/../good",
    }  # fmt: skip
    (side.outputs / "run").mkdir()
    (side.outputs / "run" / "model").write_text("m")
    os.mkfifo(side.outputs / "pipe")
    for name, target in links.items():
        os.symlink(target, side.outputs / name)
    seen = Counted()
    await side.get("", progress=seen)
    assert set(seen.skipped) == {"absolute", "up", "folder", "loop", "gone", "to-folder", "pipe"}
    copied = {path.name: path.read_text() for path in (side.here / "outputs").rglob("*") if path.is_file()}
    assert copied == {"good": "m", "round": "m", "model": "m"}
    assert not any(path.is_symlink() for path in side.here.rglob("*"))
    for path in ("absolute", "up", "folder/shadow", "loop"):
        with raises(FilesRefused, "files.path.outside"):
            await side.get(path)
    for path in ("../owner", "run/../../owner", "/etc/passwd", "a\0b"):
        place = Place("app-1", "outputs", path)
        assert await side.refusal(ListFiles(place)) == "files.path.outside"
        assert await side.refusal(ReadFile(place, 0, 1, 1)) == "files.path.outside"
        assert await side.refusal(CommitUpload(place, "a" * 32, 0, "b" * 64), writes=True) == "files.path.outside"
    with raises(FilesRefused, "files.not_regular"):
        await side.get("pipe")


async def test_an_interrupted_copy_continues(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dorm.client.files._DOWNLOAD_PAUSE_S", 0.01)
    model = os.urandom(20 * BLOCK + 5)
    (side.outputs / "model").write_bytes(model)
    side.bus.outages = 3
    seen = Counted()
    await side.get("model", progress=seen)
    assert ((side.here / "model").read_bytes(), side.bus.outages, seen.bytes) == (model, 0, len(model))
    assert [path.name for path in side.here.iterdir()] == ["model"]


async def test_another_process_continues_and_notices_errors(side: Side) -> None:
    model = os.urandom(5 * BLOCK)
    (side.outputs / "model").write_bytes(model)
    status = (side.outputs / "model").stat()
    entry = FileEntry("", "file", size=status.st_size, modified=status.st_mtime_ns)
    part = part_of(side.here / "model", entry)
    for left in (model[: 3 * BLOCK + 9], model + b"more"):
        part.write_bytes(left)
        await side.get("model")
        assert (side.here / "model").read_bytes() == model
        (side.here / "model").unlink()
    part.write_bytes(b"x" * BLOCK)
    with raises(FilesRefused, "files.copy.damaged"):
        await side.get("model")
    assert list(side.here.iterdir()) == [], "and the next try begins at the start"
    await side.get("model")
    assert (side.here / "model").read_bytes() == model


async def test_holes_cost_neither_disk_nor_bytes(side: Side) -> None:
    size = 40 * 2**30 + 11
    with (side.outputs / "sparse").open("wb") as file:
        file.seek(20 * 2**30 + 5)
        file.write(b"data")
        file.truncate(size)
    answerer = FileAnswerer(_Pool(), side.runtime, Desired("node-1"), side.folder, None)
    modified = (side.outputs / "sparse").stat().st_mtime_ns
    question = ReadFile(Place("app-1", "outputs", "sparse"), 0, size, modified)
    pieces = [answer_decoder.decode(piece) async for piece in answerer(encode(question))]
    assert sum(isinstance(one, Block) for one in pieces) == 2
    assert sum(isinstance(one, Zeros) for one in pieces) == 2
    await side.get("sparse")
    copy = side.here / "sparse"
    assert (copy.stat().st_size, copy.stat().st_blocks * 512 < 2**22) == (size, True)
    with copy.open("rb") as file:
        file.seek(20 * 2**30 + 5)
        assert file.read(5) == b"data\0"
    await side.put(copy, "back")
    back = side.outputs / "back"
    assert (back.stat().st_size, back.stat().st_blocks * 512 < 2**22) == (size, True)


async def test_a_file_that_changes_is_not_mixed(side: Side) -> None:
    model = side.outputs / "model"
    model.write_bytes(os.urandom(8 * BLOCK))
    status = model.stat()
    place = Place("app-1", "outputs", "model")
    assert await side.refusal(ReadFile(place, 0, status.st_size, status.st_mtime_ns)) == ""
    assert await side.refusal(ReadFile(place, 0, status.st_size, status.st_mtime_ns + 1)) == "files.changed"
    assert await side.refusal(ReadFile(place, 1, status.st_size, status.st_mtime_ns)) == "files.question.malformed"
    answerer = FileAnswerer(_Pool(), side.runtime, Desired("node-1"), side.folder, None)
    answer = answerer(encode(ReadFile(place, 0, status.st_size, status.st_mtime_ns)))
    assert isinstance(answer_decoder.decode(await anext(answer)), Block)
    os.truncate(model, BLOCK)
    rest = [answer_decoder.decode(piece) async for piece in answer]
    assert isinstance(rest[-1], Refusal)
    assert rest[-1].code == "files.changed"


async def test_slow_files_of_one_tenant_delay_no_other_tenant(side: Side) -> None:
    pool, never = _Pool(), threading.Event()
    asked = encode(ListFiles(Place("app-1", "outputs")))

    def listing(tenant: str) -> AsyncIterator[bytes]:
        return FileAnswerer(pool, side.runtime, Desired("node-1"), side.folder, tenant)(asked)

    waiting = [asyncio.create_task(pool.run("mallory", never.wait)) for _ in range(20)]

    async def begun(answer: AsyncIterator[bytes]) -> bytes:
        return await anext(answer)

    tasks = [asyncio.create_task(begun(listing("mallory"))) for _ in range(16)]
    try:
        async with asyncio.timeout(60):
            (piece,) = [answer_decoder.decode(piece) async for piece in listing("alice")]
        assert isinstance(piece, Listing)
    finally:
        never.set()
        await asyncio.gather(*waiting, *tasks)


async def test_a_folder_of_names_without_end_is_not_read_to_its_end(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (side.outputs / f"file-{number}").touch()
    monkeypatch.setattr("agents.outputs.files.MOST_FILES", 10)
    looked: list[str] = []
    look = reading._looked

    def counted(root: Path, path: str, place: str, folder: int, hidden: str) -> FileEntry:
        looked.append(place)
        return look(root, path, place, folder, hidden)

    monkeypatch.setattr(reading, "_looked", counted)
    assert await side.refusal(ListFiles(Place("app-1", "outputs"))) == "files.too_many"
    assert len(looked) == 11


async def test_uploads_of_any_size_leave_room_for_checkpoints(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [2 * 2**30]
    monkeypatch.setattr("agents.outputs.files.shutil.disk_usage", lambda _: type("Use", (), {"free": free[0]}))
    place = Place("app-1", "outputs", "large")

    def block(number: int) -> WriteBlock:
        return WriteBlock(place, "a" * 32, number * BLOCK, bytes(BLOCK))

    assert await side.refusal(block(0), writes=True) == ""
    free[0] = 2**30
    assert await side.refusal(block(1), writes=True) == "files.no_room"
    assert await side.refusal(WriteBlock(place, "b" * 32, 0, b"x"), writes=True) == "files.no_room"
    assert sorted(path.name for path in side.outputs.parent.glob("incoming/*")) == ["a" * 32]


async def test_an_upload_appears_only_once_it_is_complete(side: Side) -> None:
    weights = side.here / "weights"
    weights.mkdir()
    (weights / "a.bin").write_bytes(os.urandom(9 * BLOCK + 1))
    (weights / "empty").touch()
    (weights / "run.sh").write_text("x")
    (weights / "run.sh").chmod(0o755)
    os.symlink("/", weights / "root")
    seen = Counted()
    assert await side.put(weights, "in/here/", area="checkpoints", progress=seen) == Copied(3, 9 * BLOCK + 2, 0, 1)
    there = side.checkpoints / "in/here/weights"
    assert (there / "a.bin").read_bytes() == (weights / "a.bin").read_bytes()
    assert sorted(path.name for path in there.iterdir()) == ["a.bin", "empty", "run.sh"]
    assert os.access(there / "run.sh", os.X_OK)
    assert (seen.bytes, seen.planned, set(seen.skipped)) == (9 * BLOCK + 2, (3, 9 * BLOCK + 2), {"root"})
    assert await side.put(weights, "in/here", area="checkpoints") == Copied(0, 0, 3, 1)
    assert os.listdir(side.outputs.parent / "incoming") == []
    (side.checkpoints / "in/run.sh").mkdir()
    async with side.serving():
        commit = CommitUpload(Place("app-1", "checkpoints", "in/run.sh"), "a" * 32, 0, FileDigest().of(0))
        with raises(FilesRefused, "files.is_folder"):
            await side.files.write(side.where("checkpoints"), commit)


async def test_an_upload_follows_no_link(side: Side, tmp_path: Path) -> None:
    (side.here / "f").write_text("x")
    os.symlink(tmp_path, side.outputs / "out")
    async with side.serving():
        place = side.where().place("out/f")
        await side.files.write(side.where(), WriteBlock(place, "a" * 32, 0, b"x"))
        digest = FileDigest()
        digest.add(b"x")
        with raises(FilesRefused, "files.not_found"):
            await side.files.write(side.where(), CommitUpload(place, "a" * 32, 1, digest.of(1)))
    assert not (tmp_path / "f").exists()


async def test_a_step_of_an_upload_may_repeat_and_a_wrong_one_changes_nothing(side: Side) -> None:
    async with side.serving():
        files, where = side.files, side.where()
        digest, place = FileDigest(), where.place("model")
        digest.add(b"abc")
        block, commit = WriteBlock(place, "a" * 32, 0, b"abc"), CommitUpload(place, "a" * 32, 3, digest.of(3))
        for _ in range(2):
            assert (await files.write(where, block)).size == 3
        for _ in range(2):
            assert (await files.write(where, commit)).size == 3
        await files.write(where, WriteBlock(place, "b" * 32, 0, b"abd"))
        with raises(FilesRefused, "files.upload.damaged"):
            await files.write(where, CommitUpload(place, "b" * 32, 3, digest.of(3)))
        lost = FileDigest()
        lost.add(b"abx")
        with raises(FilesRefused, "files.upload.lost"):
            await files.write(where, CommitUpload(place, "b" * 32, 3, lost.of(3)))
        with raises(FilesRefused, "files.area.read_only"):
            await files.write(side.where("work"), WriteBlock(Place("app-1", "work", "x"), "a" * 32, 0, b""))
    assert (side.outputs / "model").read_text() == "abc"


async def test_only_its_tenant_s_files_are_shown(side: Side) -> None:
    listing = ListFiles(Place("app-1", "outputs"))
    write = WriteBlock(Place("app-1", "outputs", "x"), "a" * 32, 0, b"x")
    assert await side.refusal(listing, tenant="alice") == ""
    for tenant in ("mallory", "", "Alice"):
        assert await side.refusal(listing, tenant=tenant) == "files.app_unknown"
        assert await side.refusal(write, tenant=tenant, writes=True) == "files.app_unknown"
    assert await side.refusal(ListFiles(Place("app-2", "outputs")), tenant="alice") == "files.app_unknown"
    for app in ("..", ".dorm-apps", "", "a/b"):
        assert await side.refusal(ListFiles(Place(app, "checkpoints"))) == "files.app_unknown"
    for question in (b"", b"\xff", b"{}", encode({"type": "Other"})):
        assert await side.refusal(question) == "files.question.malformed"


async def test_without_the_mount_no_question_is_answered(side: Side) -> None:
    (side.folder.path / ".dorm-checkpoints").unlink()
    assert await side.refusal(ListFiles(Place("app-1", "outputs"))) == "files.not_mounted"
    with raises(FilesRefused, "files.not_mounted"):
        await side.get("")
    with raises(FilesRefused, "files.no_answer"):
        await copy_from(side.files, side.where(), "", side.here)  # No agent runs.


async def test_a_listing_is_bounded(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1200):
        (side.outputs / f"{number:04}").touch()
    async with side.serving():
        assert len(await side.files.listed(side.where())) == 1201
    monkeypatch.setattr("agents.outputs.files.MOST_FILES", 1000)
    assert await side.refusal(ListFiles(Place("app-1", "outputs"))) == "files.too_many"


@settings(max_examples=tries(4, 20))
@given(
    st.lists(st.tuples(st.integers(0, 6 * BLOCK), st.binary(min_size=1, max_size=40)), max_size=4), st.integers(0, 40)
)
def test_a_file_has_one_digest_however_its_holes_are_stored(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bytes]], more: int
) -> None:
    folder = tmp_path_factory.mktemp("digest")
    content = bytearray()
    with (folder / "sparse").open("wb") as file:
        for at, data in writes:
            file.seek(at)
            file.write(data)
            content += bytes(max(0, at + len(data) - len(content)))
            content[at : at + len(data)] = data
        content += bytes(more)
        file.truncate(len(content))
    (folder / "dense").write_bytes(content)
    plain = FileDigest()
    for at in range(0, len(content), BLOCK):
        plain.add(bytes(content[at : at + BLOCK]))
    for name in ("sparse", "dense"):
        with (folder / name).open("rb") as file:
            assert digest_of(file.fileno(), len(content)).of(len(content)) == plain.of(len(content))
