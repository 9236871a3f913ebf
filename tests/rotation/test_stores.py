"""Stores of archives: a folder, and an S3-compatible store over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from events.archive.place import check_place, open_store
from events.archive.stores import ArchiveMissing, Name, StoreError, digest_of, name_of
from events.archive.whole import WholeLog, open_archive_of
from events.log.records import LogDamaged
from tests.errors import raises
from tests.master.sealed import CLUSTER, sealed_log
from tests.rotation.logs import ALL, Rotating, records_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from events.archive.stores import ArchiveStore


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a store that speaks S3 over HTTP on this machine."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_REGION": "us-east-1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1").create_bucket(Bucket="logs")
        yield "s3://logs/dorm"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "archives")
    return f"{request.getfixturevalue('bucket')}/{os.urandom(4).hex()}"


async def test_stored_files_are_read_back(place: str, tmp_path: Path) -> None:
    store = open_store(place, CLUSTER)
    assert await store.names() == []
    content = os.urandom(9 << 20)
    (tmp_path / "file").write_bytes(content)
    file = os.open(tmp_path / "file", os.O_RDONLY)
    first, second = Name(0, 9, digest_of(file)), Name(9, 12, digest_of(file))
    os.close(file)
    with raises(ArchiveMissing, "archive.missing", "records 1 to 9"):
        await store.fetch(first)
    for _ in range(2):  # A try that was not answered is repeated.
        await store.put(first, tmp_path / "file")
    await store.put(second, tmp_path / "file")
    assert await store.names() == [first, second]
    assert await open_store(place, "another").names() == []
    got = await store.fetch(first)
    try:
        assert os.pread(got, len(content) + 1, 0) == content
        assert digest_of(got) == first.digest
    finally:
        os.close(got)
    with raises(LogDamaged, "archive.altered"):
        await _other(store, first)
    await store.close()


async def _other(store: ArchiveStore, name: Name) -> None:
    """A file of other bytes under a name."""
    import tempfile
    from pathlib import Path

    with tempfile.NamedTemporaryFile() as other:
        other.write(b"other")
        other.flush()
        await store.put(name, Path(other.name))
    await open_archive_of(store, name, CLUSTER)


async def test_a_log_is_rotated_into_it(place: str, tmp_path: Path) -> None:
    rotating = Rotating(sealed_log(seals=3, between=30), tmp_path)
    rotating.store = open_store(place, CLUSTER)
    while await rotating.rotator(most=50).step(ALL) is not None:
        pass
    whole = WholeLog(rotating.stream, CLUSTER, place=place)
    assert (await records_of(whole))[: len(rotating.given)] == rotating.given
    assert (await records_of(WholeLog(rotating.stream, CLUSTER)))[: len(rotating.given)] == rotating.given
    await whole.close()


async def test_a_missing_store(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rotating = Rotating(sealed_log(seals=3, between=30), tmp_path)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.setattr("events.archive.s3._RETRIES", 0)
        rotating.store = open_store(bucket, CLUSTER)
        with raises(StoreError, "archive.store.failed", "s3://logs/dorm"):
            await rotating.rotator().step(ALL)
    assert await rotating.stream.start() == 0
    rotating.store = open_store("s3://no-such-bucket", CLUSTER)
    with raises(StoreError, "archive.store.failed"):
        await rotating.rotator().step(ALL)


class Between:
    """Passes bytes between a client and a store, until this many have passed in either direction; then cuts connections."""

    def __init__(self, host: str, port: int, most: int) -> None:
        self.passed = 0
        self._to = host, port
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Between:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        store_reader, store_writer = await asyncio.open_connection(*self._to)
        for source, sink in ((reader, store_writer), (store_reader, writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(sink):
            while self.passed < self._most and (data := await source.read(1024)):
                sink.write(data[: max(0, self._most - self.passed)])
                self.passed += len(data)
                await sink.drain()


async def test_a_store_that_fails_midway_is_reported(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At any byte of a rotation, of what is sent and of what comes back: nothing is lost, and the next one does it all."""
    usual = os.environ["AWS_ENDPOINT_URL"]
    host, _, port = usual.removeprefix("http://").partition(":")
    monkeypatch.setattr("events.archive.s3._RETRIES", 0)

    async def rotate(part: str, most: int) -> tuple[Rotating, int, StoreError | None]:
        rotating, failed = Rotating(sealed_log(seals=3, between=30), tmp_path / part), None
        async with Between(host, int(port), most) as between:
            monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
            rotating.store = open_store(f"{bucket}/{part}", CLUSTER)
            try:
                assert await rotating.rotator().step(ALL) is not None
            except StoreError as error:
                failed = error
        monkeypatch.setenv("AWS_ENDPOINT_URL", usual)
        rotating.store = open_store(f"{bucket}/{part}", CLUSTER)
        return rotating, between.passed, failed

    _, whole, failed = await rotate("whole", 1 << 40)
    assert failed is None
    for number in range(10):
        rotating, _, failed = await rotate(f"part{number}", whole * number // 10)
        assert failed is not None, number
        assert failed.code in ("archive.store.failed", "archive.missing")
        start = await rotating.stream.start()
        if start:  # It broke off after all was done.
            assert [name.upto for name in await rotating.store.names()] == [start]
        while await rotating.rotator().step(ALL) is not None:
            pass
        found = WholeLog(rotating.stream, CLUSTER, place=f"{bucket}/part{number}")
        assert (await records_of(found))[: len(rotating.given)] == rotating.given
        await found.close()


async def test_a_file_in_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "archives").write_text("a file")
    rotating = Rotating(sealed_log(seals=3, between=30), tmp_path)
    with raises(StoreError, "archive.store.failed", str(tmp_path)):
        await rotating.rotator().step(ALL)
    assert await rotating.stream.start() == 0


@pytest.mark.parametrize(("shared", "file", "folder"), [(False, 0o600, 0o700), (True, 0o640, 0o2750)])
async def test_only_the_owner_reads_archives_unless_their_folder_is_shared(
    tmp_path: Path, shared: bool, file: int, folder: int
) -> None:
    before = os.umask(0o022)
    try:
        place = tmp_path / "archives"
        place.mkdir()
        place.chmod(0o2755 if shared else 0o755)
        rotating = Rotating(sealed_log(seals=3, between=30), tmp_path)
        rotating.store = open_store(str(place), CLUSTER)
        await rotating.rotator().step(ALL)
        (archive,) = (place / CLUSTER).iterdir()
        assert stat.S_IMODE(archive.stat().st_mode) == file
        assert stat.S_IMODE(archive.parent.stat().st_mode) == folder
    finally:
        os.umask(before)


def test_places_and_names() -> None:
    for wrong in ("s3://", "s3://key:secret@host/bucket", "http://x", "  "):
        with raises(StoreError, "archive.place.malformed"):
            check_place(wrong)
    assert check_place("s3://logs/dorm/") == "s3://logs/dorm"
    assert name_of(str(Name(1, 2, "0" * 32))) == Name(1, 2, "0" * 32)
    assert name_of("notes.txt") is name_of(f".{Name(1, 2, '0' * 32)}.abcd.unfinished") is None
