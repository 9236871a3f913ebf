"""Shipping a folder: what is sent, what is kept, and what a node does with it, on a store in memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from agents.desired import DesiredApp
from agents.fetching import Fetching
from agents.runtime.interface import Key, Refused, Unavailable
from agents.runtime.run_dirs import RunDirs
from agents.runtime.workdir import BlobCache, Incomplete, TenantBlobs, place
from dorm.core.app import App
from dorm.core.state import State
from dorm.workdir.errors import OverQuota, Unshippable
from dorm.workdir.keeping import Removed, enforce_quotas, named, remove_unneeded, uses
from dorm.workdir.shipping import get_folder, ship_folder
from events.log.records import LogUnavailable
from events.log.stores import MemoryFiles
from events.quantities import SECOND
from events.spec import AppSpec, Workdir
from events.workdir import BLOB, File, Limits, Link, Manifest, Part, encode, hash_of, seal_blob
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400 * SECOND
TENANT = "alice"


class Clock:
    now = 100 * DAY

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def files(clock: Clock) -> MemoryFiles:
    return MemoryFiles(clock)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for number in range(200):
        (root / f"pkg{number % 5}").mkdir(parents=True, exist_ok=True)
        (root / f"pkg{number % 5}" / f"m{number}.py").write_text(f"print({number})\n" * number)
    (root / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (root / "run.sh").chmod(0o4777)
    (root / "weights").write_bytes(os.urandom(1_200_000))
    (root / "latest").symlink_to("pkg1/m1.py")
    (root / "empty").mkdir()
    return root


def desired(workdir: Workdir, tenant: str = TENANT) -> DesiredApp:
    spec = AppSpec(name="train", command=["python3"], demand={"cpu": 1}, workdir=workdir)
    return DesiredApp(spec, tenant=tenant)


async def test_existing_parts_are_not_sent_again(files: MemoryFiles, project: Path, clock: Clock) -> None:
    first = await ship_folder(files, TENANT, project, clock=clock)
    assert first.sent == first.blobs == len(await files.listed())
    assert first.workdir.files == 202
    again = await ship_folder(files, TENANT, project, clock=clock)
    assert (again.sent, again.workdir) == (0, first.workdir)
    (project / "pkg2" / "m7.py").write_text("changed")
    changed = await ship_folder(files, TENANT, project, clock=clock)
    assert changed.sent == 2  # One bundle, and the list of files.
    assert changed.workdir.hash != first.workdir.hash
    other = await ship_folder(files, "bob", project, clock=clock)
    assert other.sent == other.blobs  # Tenants share nothing.


async def test_a_node_lays_out_shipped_folders(files: MemoryFiles, project: Path, tmp_path: Path, clock: Clock) -> None:
    workdir = (await ship_folder(files, TENANT, project, clock=clock)).workdir
    cache = BlobCache(tmp_path / "cache")
    await Fetching(files, cache).have(desired(workdir))
    files_gone = MemoryFiles(clock)
    await Fetching(files_gone, cache).have(desired(workdir))  # What the node has needs no server.
    place(cache.of(TENANT), workdir.hash, tmp_path / "work", (os.getuid(), os.getgid()))
    work = tmp_path / "work"
    assert (work / "weights").read_bytes() == (project / "weights").read_bytes()
    assert {p.relative_to(work): p.read_text() for p in work.rglob("*.py") if not p.is_symlink()} == {
        p.relative_to(project): p.read_text() for p in project.rglob("*.py") if not p.is_symlink()
    }
    assert os.readlink(work / "latest") == "pkg1/m1.py"
    assert (work / "empty").is_dir()
    assert (work / "run.sh").stat().st_mode & 0o7777 == 0o755
    (work / "run.sh").write_text("changed")  # A copy of its own.
    place(cache.of(TENANT), workdir.hash, tmp_path / "other", (os.getuid(), os.getgid()))
    assert (tmp_path / "other" / "run.sh").read_text() == (project / "run.sh").read_text()


async def test_a_damaged_or_lost_part_of_the_cache_is_fetched_again(
    files: MemoryFiles, project: Path, tmp_path: Path, clock: Clock
) -> None:
    workdir = (await ship_folder(files, TENANT, project, clock=clock)).workdir
    cache = BlobCache(tmp_path / "cache")
    fetching = Fetching(files, cache)
    await fetching.have(desired(workdir))
    work, mine = tmp_path / "work", (os.getuid(), os.getgid())
    kept = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    for round_, path in enumerate(kept):
        path.write_bytes(b"?") if round_ % 2 else path.unlink()
    with pytest.raises(Incomplete):
        place(cache.of(TENANT), workdir.hash, work, mine)
    while True:  # Each try finds a damaged one, and removes it.
        await fetching.have(desired(workdir))
        shutil.rmtree(work, ignore_errors=True)
        with contextlib.suppress(Incomplete):
            place(cache.of(TENANT), workdir.hash, work, mine)
            break
    assert (work / "weights").read_bytes() == (project / "weights").read_bytes()


async def test_a_missing_folder_fails_the_app_and_a_silent_one_is_retried(
    files: MemoryFiles, project: Path, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.fetching._PAUSE_S", 0.0)
    workdir = (await ship_folder(files, TENANT, project, clock=clock)).workdir
    cache = BlobCache(tmp_path / "cache")
    blobs = [blob for blob in await files.listed() if blob.name != workdir.hash]
    await files.remove(blobs[0])
    with raises(Refused, "workdir.gone") as told:
        await Fetching(files, cache).have(desired(workdir))
    assert told.value.cause == "spec"
    await files.put(TENANT, blobs[0].name, seal_blob(b"something else"))
    with raises(Refused, "workdir.gone"):
        await Fetching(files, cache).have(desired(workdir))

    async def away(tenant: str, name: str) -> None:
        raise LogUnavailable("nobody answers")

    monkeypatch.setattr(files, "get", away)
    with raises(Unavailable, "workdir.unreachable"):
        await Fetching(files, BlobCache(tmp_path / "new")).have(desired(workdir))


async def test_a_hostile_list_of_files_and_one_beyond_the_limits_fail_the_app(
    files: MemoryFiles, tmp_path: Path, clock: Clock
) -> None:
    for manifest, limits, code in (
        (Manifest(1, [], [Link("a", "../../etc")]), Limits(), "workdir.malformed"),
        (
            Manifest(1, [bytes(32)], [File(f"{n:04}", False, []) for n in range(50)]),
            Limits(count=40),
            "workdir.too_large",
        ),
    ):
        name, content = encode(manifest)
        await files.put(TENANT, name, seal_blob(content))
        await files.set_limits(limits)
        with raises(Refused, code):
            await Fetching(files, BlobCache(tmp_path / "cache")).have(desired(Workdir(hash=name)))


async def test_a_list_that_repeats_existing_parts_is_within_the_limits(
    files: MemoryFiles, tmp_path: Path, clock: Clock
) -> None:
    blob, cache = bytes(BLOB), BlobCache(tmp_path / "cache")
    cache.of(TENANT).put(hash_of(blob), seal_blob(blob))
    name, content = encode(Manifest(1, [bytes.fromhex(hash_of(blob))], [File("all", False, [Part(0, 0, BLOB)] * 4096)]))
    assert len(content) < 64 * 1024
    await files.put(TENANT, name, seal_blob(content))
    with raises(Refused, "workdir.too_large"):
        await Fetching(files, cache).have(desired(Workdir(hash=name)))


def test_a_list_that_exceeds_a_blob_fails_the_app_and_not_the_node(tmp_path: Path) -> None:
    dirs = RunDirs(tmp_path / "node")
    blob, key = b"short", Key("app", 1, 0)
    name, content = encode(Manifest(1, [bytes.fromhex(hash_of(blob))], [File("file", False, [Part(0, 0, 6)])]))
    dirs.root.mkdir()
    for one in (blob, content):
        dirs.blobs.of(TENANT).put(hash_of(one), seal_blob(one))
    with raises(Refused, "workdir.malformed"):  # Trouble of the node would be tried again, without end.
        dirs.make(key, workdir=name, tenant=TENANT)
    assert dirs.container_keys() == []


def put_blobs(cache: BlobCache, tenant: str, count: int, since: int = 0) -> TenantBlobs:
    """Have so many blobs of 100 bytes of a tenant in a cache, used one after the other."""
    blobs = cache.of(tenant)
    for number in range(count):
        blobs.put(f"{number:064}", bytes(100))
        os.utime(blobs._path(f"{number:064}"), (since + number, since + number))
    return blobs


def left_of(blobs: TenantBlobs, count: int) -> list[int]:
    return [number for number in range(count) if blobs._path(f"{number:064}").exists()]


def test_the_cache_keeps_recently_used_parts(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, most=1000)
    blobs = put_blobs(cache, TENANT, 12)
    assert blobs.has(f"{0:064}")
    cache.trim()
    assert left_of(blobs, 12) == [0, *range(4, 12)]


def test_one_tenant_evicts_no_others_files_from_the_cache(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, most=2000)
    quiet = put_blobs(cache, "alice", 4)
    other = put_blobs(cache, "bob", 8, since=100)
    for turn in range(3):
        greedy = put_blobs(cache, f"greedy-{turn % 2}", 12, since=1000 * (turn + 1))
        cache.trim()
        assert left_of(quiet, 4) == [*range(4)], "it used its own longest ago, and has less than its share"
    # Where all shares are used, each of those that have most is left the same.
    assert len(left_of(other, 8)) in (4, 5, 6)
    assert len(left_of(greedy, 12)) in (4, 5, 6)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size <= 1800


def test_blobs_of_an_earlier_release_are_removed(tmp_path: Path) -> None:
    (tmp_path / "00").mkdir()
    (tmp_path / "00" / f"{0:064}").write_bytes(bytes(100))
    cache = BlobCache(tmp_path)
    blobs = put_blobs(cache, TENANT, 1)
    cache.trim()
    assert not (tmp_path / "00").exists()
    assert left_of(blobs, 1) == [0]


async def test_knowing_a_hash_gives_no_access_to_another_tenants_folder(
    files: MemoryFiles, project: Path, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.fetching._PAUSE_S", 0.0)
    workdir = (await ship_folder(files, TENANT, project, clock=clock)).workdir
    cache = BlobCache(tmp_path / "cache")
    await Fetching(files, cache).have(desired(workdir))
    with raises(Refused, "workdir.gone"):
        await Fetching(files, cache).have(desired(workdir, "mallory"))
    with pytest.raises(Incomplete):
        place(cache.of("mallory"), workdir.hash, tmp_path / "work", (os.getuid(), os.getgid()))


async def test_a_folder_beyond_the_quota_is_refused_before_anything_is_sent(
    files: MemoryFiles, project: Path, clock: Clock
) -> None:
    first = (await ship_folder(files, TENANT, project, clock=clock)).workdir
    before = await files.listed()
    taken = sum(blob.takes for blob in before)
    await files.set_limits(Limits(quota=1, quotas={TENANT: taken + 400_000}))
    (project / "more").write_bytes(os.urandom(600_000))
    with raises(OverQuota, "workdir.over_quota"):
        await ship_folder(files, TENANT, project, clock=clock)
    assert await files.listed() == before
    (project / "more").write_bytes(bytes(600_000))
    second = await ship_folder(files, TENANT, project, clock=clock)
    assert second.sent, "what counts is what it takes, and this compresses well"
    with raises(OverQuota, "workdir.over_quota"):
        await ship_folder(files, "bob", project, clock=clock)

    # Its user gives up what no app of the own names: that makes room at once, and a master removes the rest.
    clock.now += 200 * SECOND
    removed = await remove_unneeded(files, state_with(first), clock(), 60.0, of=TENANT)
    assert removed.parts == second.sent
    assert await files.get(TENANT, second.workdir.hash) is None
    assert await files.get(TENANT, first.hash) is not None
    assert [use.bytes for use in uses(await files.listed(), [])] == [sum(blob.size for blob in before)]
    assert (await remove_unneeded(files, state_with(first), clock(), 86_400.0)).parts == 0
    assert await files.listed() == before
    assert (await ship_folder(files, TENANT, project, clock=clock)).sent == second.sent, "it may be shipped again"


async def test_a_refusal_leaves_no_process_that_asyncio_warns_of(
    files: MemoryFiles, project: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder is refused while git still looks at it, or has just ended."""
    await asyncio.to_thread(subprocess.run, ["git", "init", "--quiet", str(project)], check=True)
    await files.set_limits(Limits(count=3))
    for _ in range(40):
        with raises(Unshippable, "workdir.too_many_files"):
            await ship_folder(files, TENANT, project, clock=clock)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_foreign_parts_beyond_the_quota_are_removed_and_nothing_of_others(
    files: MemoryFiles, project: Path, clock: Clock
) -> None:
    own = (await ship_folder(files, TENANT, project, clock=clock)).workdir
    shutil.rmtree(project / "pkg1")
    (project / "weights").unlink()
    other = (await ship_folder(files, "bob", project, clock=clock)).workdir
    for number in range(10):
        clock.now += SECOND
        await files.put("bob", f"{number:064x}", os.urandom(100_000))
    junk = [blob.name for blob in await files.listed("bob") if blob.size == 100_000]
    state = state_with(other, tenant="bob")
    taken = sum(blob.takes for blob in await files.listed("bob") if blob.name not in junk)
    limits = Limits(quotas={"bob": taken + 250_000})
    (removed,) = (await enforce_quotas(files, state, limits)).values()
    assert removed == Removed(8, 800_000)
    assert {blob.name for blob in await files.listed("bob")} & set(junk) == set(junk[:2]), "the earliest stay"
    assert await enforce_quotas(files, state, limits) == {}
    assert await files.get(TENANT, own.hash) is not None
    await get_folder(files, "bob", other.hash, project.parent / "bobs")
    assert (project.parent / "bobs" / "run.sh").exists()


def state_with(*workdirs: Workdir, tenant: str = TENANT) -> State:
    state = State()
    for number, workdir in enumerate(workdirs):
        spec = AppSpec(name="train", command=["-"], demand={"cpu": 1}, workdir=workdir)
        state.apps[f"train-{number}"] = App(
            id=f"train-{number}", name="train", user=tenant, spec=spec, demand={}, weight=1, n_min=1, n_max=1,
            submission=f"{tenant}//{number}", submitted_at=0, seq=number,
        )  # fmt: skip
    return state


async def test_only_old_unreferenced_parts_are_removed(files: MemoryFiles, project: Path, clock: Clock) -> None:
    keep_s = Limits().keep_s
    kept = (await ship_folder(files, TENANT, project, clock=clock)).workdir
    (project / "weights").write_bytes(os.urandom(300_000))
    gone = (await ship_folder(files, TENANT, project, clock=clock)).workdir
    state = state_with(kept)
    assert named(state) == [(TENANT, kept.hash)]
    assert (await remove_unneeded(files, state, clock(), keep_s)).parts == 0
    clock.now += int(1.6 * keep_s * SECOND)
    removed = await remove_unneeded(files, state, clock(), keep_s)
    assert removed.parts == 2  # The list of files, and the one large file that is not shared.
    assert await files.get(TENANT, gone.hash) is None
    assert await files.get(TENANT, kept.hash) is not None
    (use,) = uses(await files.listed(), named(state))
    assert (use.tenant, use.folders, use.parts) == (TENANT, 1, len(await files.listed()))
    assert (await remove_unneeded(files, State(), clock(), keep_s)).parts == use.parts


async def test_a_folder_that_is_shipped_again_stays_complete(files: MemoryFiles, project: Path, clock: Clock) -> None:
    """Whenever a folder was shipped last, its parts outlive its list for the time that the cluster promises."""
    keep = int(Limits().keep_s * SECOND)
    await ship_folder(files, TENANT, project, clock=clock)
    for part in (0.3, 0.4, 0.49, 0.45, 0.6):
        clock.now += int(part * keep)
        shipped = await ship_folder(files, TENANT, project, clock=clock)
        clock.now += int(0.99 * keep) - 1
        await remove_unneeded(files, State(), clock(), Limits().keep_s)
        names = {blob.name for blob in await files.listed()}
        assert shipped.workdir.hash in names
        assert len(names) == shipped.blobs
        clock.now -= int(0.99 * keep) - 1


async def test_a_fetch_that_takes_long_is_told_apart_from_one_that_brings_nothing(
    files: MemoryFiles, project: Path, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the latter is given up after a while."""
    monkeypatch.setattr("agents.fetching._WAIT_S", 0.2)
    workdir = (await ship_folder(files, TENANT, project, clock=clock)).workdir
    fetching, get, brought = Fetching(files, BlobCache(tmp_path / "cache")), files.get, 0

    async def slow(tenant: str, name: str) -> tuple[bytes, int] | None:
        nonlocal brought
        if brought:
            await asyncio.Event().wait()
        brought += 1
        return await get(tenant, name)

    monkeypatch.setattr(files, "get", slow)
    with raises(Unavailable, "workdir.fetching"):
        await fetching.have(desired(workdir))
    with raises(Unavailable, "workdir.stalled"):
        await fetching.have(desired(workdir))
    monkeypatch.undo()
    await fetching.have(desired(workdir))
