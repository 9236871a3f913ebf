"""Short paths of plain processes: who gets them, and what removes them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents.runtime import run_dirs
from agents.runtime.interface import Key, RuntimeFault, Unavailable, spec_hash
from agents.runtime.process import records, short_paths
from agents.runtime.process import runtime as process
from agents.runtime.process.runtime import ProcessRuntime
from agents.runtime.process.short_paths import ABANDONED_S, recorded, remove_abandoned
from agents.runtime.run_dirs import RunDirs, work_copy
from tests.agents.harness import PATIENCE_S, POLITE, Harness, container_dir, ended, look, output, says
from tests.agents.killed_agent import start_and_kill
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents.runtime.interface import Runtime

OTHER_USER = 65534


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place for short paths."""
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(short_paths, "PLACES", (place,))
    return place


def folders(place: Path) -> list[Path]:
    return sorted(place.iterdir())


def links(place: Path) -> list[str]:
    """Where the links of containers lead, in all folders."""
    return [
        path.readlink().name for folder in folders(place) for path in sorted(folder.iterdir()) if path.name != "root"
    ]


def old(folder: Path) -> None:
    before = time.time() - ABANDONED_S - 1
    os.utime(folder, (before, before))


async def said_from(runtime: Runtime, harness: Harness) -> str:
    """TMPDIR of a new container, if it works."""
    spec = harness.shell('touch "$TMPDIR/x" "$HOME/x" && echo "$TMPDIR"')
    await runtime.ensure(spec)
    assert (await ended(runtime, spec.key)).exit_code == 0
    return (await output(runtime, spec.key)).decode().strip()


# their lives


async def test_a_short_path_lives_as_long_as_its_container(process_harness: Harness, place: Path) -> None:
    first, second = process_harness.shell(POLITE), process_harness.shell("exit 0")
    async with process_harness.opened() as runtime:
        for spec in (first, second):
            await runtime.ensure(spec)
        await says(runtime, first.key, b"ready")
        (folder,) = folders(place)
        assert folder.stat().st_mode & 0o7777 == 0o700
        assert sorted(links(place)) == ["app-1-0", "app-2-0"]
        await ended(runtime, second.key)
        await runtime.remove(second.key)
        assert links(place) == ["app-1-0"]
    assert (folders(place), links(place)) == ([folder], ["app-1-0"]), "a container uses it while the agent is away"
    async with process_harness.opened() as runtime:
        assert await runtime.ensure(first) == await look(runtime, first.key)
        assert (folders(place), links(place)) == ([folder], ["app-1-0"])
        await runtime.stop(first.key, PATIENCE_S)
    assert folders(place) == [], "nothing uses it"
    async with process_harness.opened() as runtime:
        assert (folders(place), links(place)) == ([folder], ["app-1-0"])
        await runtime.remove(first.key)
        assert links(place) == []


async def test_a_start_that_is_refused_leaves_none(process_harness: Harness, place: Path) -> None:
    async with process_harness.opened() as runtime:
        for spec in (process_harness.spec("no-such-command"), process_harness.shell("true", workdir="0" * 64)):
            with pytest.raises(RuntimeFault):
                await runtime.ensure(spec)
        assert links(place) == []


async def test_what_a_dead_agent_leaves_is_found_again(process_harness: Harness) -> None:
    """In /tmp, where the killed agent put it."""
    spec = process_harness.shell(POLITE)
    await start_and_kill(process_harness.expression, spec, None)
    async with process_harness.opened() as runtime:
        path = recorded(container_dir(runtime, spec.key))
        assert path is not None
        assert path.parent == Path((container_dir(runtime, spec.key).parent / "short").read_text())
        assert path.parent.parent == Path("/tmp")
        assert path.samefile(container_dir(runtime, spec.key))
        dangling = path.with_name("zzzz")
        dangling.symlink_to("nowhere")  # as a crash in the middle of a start leaves it
        await runtime.stop(spec.key, 0)
        used = path.parent
    async with process_harness.opened() as runtime:
        assert path.samefile(container_dir(runtime, spec.key))
        assert not dangling.is_symlink()
        await runtime.remove(spec.key)
    assert not used.exists()


async def test_what_something_else_removes_is_made_again(process_harness: Harness, place: Path) -> None:
    async with process_harness.opened() as runtime:
        running, prepared = process_harness.shell(POLITE), process_harness.shell('mktemp > /dev/null && echo "$TMPDIR"')
        await runtime.ensure(running)
        await runtime.prepare(prepared)
        (folder,) = folders(place)
        shutil.rmtree(folder)
        await runtime.ensure(prepared)
        await ended(runtime, prepared.key)
        assert (await output(runtime, prepared.key)).startswith(bytes(folder))
        assert sorted(links(place)) == ["app-1-0", "app-2-0"]


async def test_a_cleaned_folder_is_looked_for_with_the_lease(
    process_harness: Harness, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_KEEP_S", 0.0)
    async with process_harness.opened() as runtime:
        spec = process_harness.shell(POLITE)
        await runtime.ensure(spec)
        (folder,) = folders(place)
        shutil.rmtree(folder)
        await runtime.extend_lease(600.0)
        async with asyncio.timeout(PATIENCE_S):
            while not folder.exists() or links(place) != ["app-1-0"]:  # noqa: ASYNC110  (no event reports it)
                await asyncio.sleep(0.01)


# who else is in such a place


def taken_by_another_user(name: Path) -> None:
    name.mkdir(mode=0o700)
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    os.chown(name, OTHER_USER, OTHER_USER)


def led_elsewhere(name: Path) -> None:
    elsewhere = name.parent.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    name.symlink_to(elsewhere)


def open_to_all(name: Path) -> None:
    name.mkdir()
    name.chmod(0o777)


def another_roots(name: Path) -> None:
    name.mkdir(mode=0o700)
    (name / "root").symlink_to("/")


@pytest.mark.parametrize("squat", [taken_by_another_user, led_elsewhere, open_to_all, another_roots, Path.touch])
async def test_a_name_that_somebody_else_took_is_not_used(
    process_harness: Harness, place: Path, squat: Callable[[Path], None]
) -> None:
    async with process_harness.opened() as runtime:
        await said_from(runtime, process_harness)
        prepared = process_harness.shell('mktemp > /dev/null && echo "$TMPDIR"')
        await runtime.prepare(prepared)
        (folder,) = folders(place)
    assert folders(place) == []
    squat(folder)
    inside = list(folder.iterdir()) if folder.is_dir() else []
    async with process_harness.opened() as runtime:
        tmp = Path(await said_from(runtime, process_harness))
        assert tmp.parents[2] == place
        assert tmp.parents[1] != folder
        with raises(Unavailable, "container.removed"):
            await runtime.ensure(prepared)  # its variables name the other one
        await runtime.ensure(prepared)
        await ended(runtime, prepared.key)
        assert (await output(runtime, prepared.key)).startswith(bytes(tmp.parents[1]))
        assert (list(folder.iterdir()) if folder.is_dir() else []) == inside


async def test_only_a_place_where_nobody_can_exchange_it_is_used(
    process_harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, missing, good = (tmp_path / name for name in ("shared", "missing", "good"))
    shared.mkdir()
    shared.chmod(0o777)
    good.mkdir()
    monkeypatch.setattr(short_paths, "PLACES", (shared, missing))
    async with process_harness.opened() as runtime:
        with raises(
            Unavailable, "container.folder.not_writable", f"none of {shared}, {missing} can hold its short path"
        ):
            await runtime.ensure(process_harness.shell("true"))
        assert await runtime.list() == []
        monkeypatch.setattr(short_paths, "PLACES", (shared, missing, good))
        assert Path(await said_from(runtime, process_harness)).is_relative_to(good)
    assert list(shared.iterdir()) == []


def test_only_what_a_dead_agents_root_no_longer_names_is_removed(place: Path, tmp_path: Path) -> None:
    def left(number: int, *, root: bool = True, named: bool = False) -> Path:
        folder, its_root = place / f"dorm-{number:08x}", tmp_path / f"root-{number}"
        folder.mkdir(mode=0o700)
        (folder / "root").symlink_to(its_root)
        (folder / "abcd").symlink_to(tmp_path)
        if root:
            its_root.mkdir()
            (its_root / "short").write_text(str(folder) if named else "another")
        old(folder)
        return folder

    gone, renamed, others, young, locked = left(1, root=False), left(2), left(3, named=True), left(4), left(5)
    os.utime(young)
    half = place / "dorm-00000006"
    half.mkdir(mode=0o700)
    old(half)
    foreign, similar = place / "dorm-users", place / "dorm-00000008"
    for folder in (foreign, similar):
        folder.mkdir(mode=0o700)
        (folder / "data").touch()
        old(folder)
    keep = {others, young, locked, foreign, similar}
    if os.geteuid() == 0:
        keep.add(left(7, root=False))
        os.chown(place / "dorm-00000007", OTHER_USER, OTHER_USER)
    descriptor = os.open(locked, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    remove_abandoned()
    os.close(descriptor)
    assert {*folders(place)} == keep
    assert {gone, renamed, half}.isdisjoint(keep)
    assert (tmp_path / "root-2").is_dir(), "no link is followed"


async def test_an_agents_start_removes_what_others_have_abandoned(process_harness: Harness, place: Path) -> None:
    abandoned = place / "dorm-00000001"
    abandoned.mkdir(mode=0o700)
    old(abandoned)
    async with process_harness.opened() as runtime, asyncio.timeout(PATIENCE_S):
        while abandoned.exists():  # noqa: ASYNC110  (it is removed in a separate thread)
            await asyncio.sleep(0.01)
        await said_from(runtime, process_harness)


async def test_a_copied_root_gets_short_paths_of_its_own(process_harness: Harness, place: Path, tmp_path: Path) -> None:
    async with process_harness.opened() as runtime:
        one = Path(await said_from(runtime, process_harness))
        shutil.copytree(tmp_path / "node", tmp_path / "copy", ignore=shutil.ignore_patterns("app-*"))
        copy = ProcessRuntime("node", tmp_path / "copy")
        await copy.open()
        other = Path(await said_from(copy, process_harness))
        assert one.parents[1] != other.parents[1]
        assert len(folders(place)) == 2
        await copy.close()


async def test_a_record_that_an_app_exchanged_stops_nothing(
    process_harness: Harness, place: Path, tmp_path: Path
) -> None:
    async with process_harness.opened() as runtime:
        spec = process_harness.shell("exit 0")
        await runtime.ensure(spec)
        await ended(runtime, spec.key)
        record = container_dir(runtime, spec.key) / "short"
        record.unlink()
        for make in (
            os.mkfifo,
            os.mkdir,
            lambda path: path.symlink_to("/etc/passwd"),
            lambda path: path.write_bytes(b"\xff/"),
        ):
            make(record)
            assert recorded(record.parent) is None
            assert isinstance(runtime, ProcessRuntime)
            await asyncio.to_thread(runtime._short.keep)
            await said_from(runtime, process_harness)
            record.rename(tmp_path / f"record-{record.lstat().st_ino}")
        os.mkfifo(record)
        await runtime.remove(spec.key)
    assert folders(place) == []


# containers of releases without short paths


async def test_a_container_of_an_earlier_release_keeps_its_folders_and_its_hash(
    process_harness: Harness, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        for module in (run_dirs, records, process):
            earlier.setattr(module, "RUN", Path("run"))
        async with process_harness.opened() as runtime:
            spec, prepared = process_harness.shell(POLITE), process_harness.shell("exit 0")
            before = runtime.run_mount(spec.key)
            await runtime.ensure(spec)
            await runtime.prepare(prepared)
            await says(runtime, spec.key, b"ready")
            for key in (spec.key, prepared.key):
                (Path(runtime.run_mount(key)).parent / "short").unlink()
    async with process_harness.opened() as runtime:
        assert runtime.run_mount(spec.key) == before
        seen = await runtime.ensure(spec)
        assert (seen.state, seen.spec_hash) == ("running", spec_hash(spec))
        await runtime.put(spec.key, "members.json", b"{}")
        assert (Path(before) / "members.json").read_bytes() == b"{}"
        with raises(Unavailable, "container.removed"):
            await runtime.ensure(prepared)  # it would start with long paths
        assert runtime.run_mount(prepared.key) != before.replace("app-1-0", "app-2-0")
        await runtime.ensure(prepared)
        await runtime.stop(spec.key, PATIENCE_S)
        await runtime.remove(spec.key)


def test_the_copy_of_an_earlier_release_is_found_where_it_was(tmp_path: Path) -> None:
    dirs = RunDirs(tmp_path)
    key = Key("app", 1, 0)
    container = dirs.container_dir(key)
    assert dirs.work_dirs(key) == (container / "project", container / "project/up", container / "project/up/work")
    (container / "run").mkdir(parents=True)
    assert dirs.run_dir(key) == container / "run"
    assert dirs.work_dirs(key) == (container / "work",) == (work_copy(dirs.run_dir(key)),)
