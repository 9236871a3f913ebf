"""Records of a container that a disk has damaged: its end is unknown, it is named once, and the node goes on."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from agents import lease
from agents.gpus import Gpus
from agents.ledger import Ledger
from agents.runtime import stopping
from agents.runtime.docker import disk as docker_disk
from agents.runtime.docker import runtime as docker_runtime
from agents.runtime.interface import Conflict, ContainerSpec, Key, Seen, Unavailable, spec_hash
from agents.runtime.process import records, supervisor
from agents.runtime.process.runtime import ProcessRuntime
from agents.runtime.run_dirs import RunDirs
from tests.agents.harness import STUBBORN, Harness, container_dir, ended, look, says

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

RECORDS: Final = ("hash", "launch", "lock", "started", "exited", "refused", "stop", "short", "times", "mounts", "log")
DAMAGE: Final = ("torn", "zeros", "empty", "garbage", "missing")
KEY, OTHER = Key("app", 1, 0), Key("other", 1, 0)
SPEC = ContainerSpec(KEY, "", ("true",), env={}, resources={})


def damage(path: Path, how: str) -> None:
    """Do to a file what a disk does; a record that is not there becomes one that is damaged."""
    before = path.read_bytes() if path.exists() else b"a record of some length"
    after = {"torn": before[: len(before.rstrip()) // 2], "zeros": bytes(len(before)), "garbage": b"\xff" * 20}
    path.unlink(missing_ok=True)
    if how != "missing":
        path.write_bytes(after.get(how, b""))


def made(root: Path, key: Key, *, state: str) -> Path:
    """Write the folder of a container that this boot has seen, by hand: no process is needed for most of it."""
    folder = root / f"{key.app}-{key.generation}-{key.slot}"
    (folder / "home" / "up" / "run").mkdir(parents=True)
    launch = records.Launch("/", ("true",), {"DORM_PROGRESS": str(folder / "home/up/run/progress.jsonl")})
    records.write_launch(folder, launch, 1000, spec_hash(SPEC))
    (folder / "stop").write_text("TERM main 0")
    if state != "created":
        (folder / "started").write_text(f"{2**22 - 7} 12345 {lease.boot_id()} {time.time_ns()}")
    if state == "exited":
        (folder / "exited").write_text(f"0 {time.time_ns()}".ljust(supervisor.RECORD_BYTES))
    return folder


async def seen_by_the_next_agents(root: Path) -> tuple[dict[Key, Seen], list[str]]:
    """What two agents in a row list, twice each; which files the first one names."""
    with capture_logs() as logs:
        for _ in range(2):
            runtime = ProcessRuntime("node", root)
            await runtime.open()
            try:
                await runtime.list()
                listed = {one.key: one for one in await runtime.list()}
            finally:
                await runtime.close()
    named = [os.path.basename(one["file"]) for one in logs if "damaged" in one["event"] and "file" in one]
    return listed, named


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("state", ["created", "started", "exited"])
async def test_a_damaged_record_concerns_only_its_container(tmp_path: Path, state: str, record: str, how: str) -> None:
    folder = made(tmp_path, KEY, state=state)
    made(tmp_path, OTHER, state="exited")
    was_there = (folder / record).exists()
    damage(folder / record, how)
    listed, named = await seen_by_the_next_agents(tmp_path)
    assert (listed[OTHER].state, listed[OTHER].exit_code) == ("exited", 0)
    seen = listed[KEY]
    gone = how == "missing"
    told = {"hash", "started", "exited", "refused"}
    half_a_reason = (record, how) == ("refused", "torn")
    if record in told and not (gone and record != "hash") and not half_a_reason:
        assert named[:1] == [record]
        assert named.count(record) == 2, "once by each agent"
    if record == "refused" and not gone:
        assert (seen.state, bool(seen.error)) == ("exited", True)
    elif (record == "exited" and not gone) or (record == "started" and not gone and state != "exited"):
        assert (seen.state, seen.exit_code, seen.interrupted) == ("exited", None, True)
    elif record == "exited" and was_there:  # gone: nobody saw its end
        assert (seen.state, seen.exit_code) == ("exited", None)
    elif state == "created" or (record == "started" and gone and state == "started"):
        assert seen.state == "created"
    else:
        assert (seen.state, seen.exit_code) == ("exited", 0 if state == "exited" else None)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("record", ["hash", "launch", "mounts"])
async def test_a_container_that_never_ran_is_made_again(tmp_path: Path, record: str, how: str) -> None:
    folder = made(tmp_path, KEY, state="created")
    if record == "mounts":
        (folder / "mounts").write_bytes(b"data\0/data\0/target\0ro")
    damage(folder / record, how)
    if (record, how) == ("mounts", "missing"):
        return  # It has no volumes then.
    runtime = ProcessRuntime("node", tmp_path)
    await runtime.open()
    try:
        with pytest.raises(Unavailable) as made_again:
            await runtime.ensure(SPEC)
        assert made_again.value.code == "container.removed"
        assert not folder.exists()
    finally:
        await runtime.close()


async def test_a_container_whose_hash_is_damaged_is_known_by_its_key(tmp_path: Path) -> None:
    damage(made(tmp_path, KEY, state="exited") / "hash", "zeros")
    made(tmp_path, OTHER, state="exited")
    (tmp_path / "other-1-0" / "hash").write_text("0" * 32)
    runtime = ProcessRuntime("node", tmp_path)
    await runtime.open()
    try:
        assert (await runtime.ensure(SPEC)).exit_code == 0
        with pytest.raises(Conflict):
            await runtime.ensure(ContainerSpec(OTHER, "", ("true",), env={}, resources={}))
    finally:
        await runtime.close()


@pytest.fixture
async def runtime(process_harness: Harness) -> AsyncIterator[ProcessRuntime]:
    async with process_harness.opened() as runtime:
        assert isinstance(runtime, ProcessRuntime)
        yield runtime


@pytest.mark.slow
async def test_a_running_container_outlives_its_damaged_records(
    process_harness: Harness, runtime: ProcessRuntime
) -> None:
    """Its supervisor knows it, so it is found, signalled and measured; its end is recorded."""
    spec = process_harness.shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"ready")
    folder = container_dir(runtime, spec.key)
    before = records.look(folder, spec.key)
    for name in ("started", "launch", "hash"):
        damage(folder / name, "zeros")
    after = records.look(folder, spec.key)
    assert before is not None
    assert after is not None
    assert (after.supervisor, after.program, after.start_time) == (before.supervisor, before.program, before.start_time)
    assert abs(after.seen.started_at - before.seen.started_at) < 10**9
    assert await runtime.use(spec.key) is not None
    with pytest.raises(Unavailable) as unknown:
        await runtime.run(spec.key, ("true",), 10.0)
    assert unknown.value.code == "container.record.damaged"
    await runtime.stop(spec.key, 30.0)
    seen = await look(runtime, spec.key)
    assert seen is not None
    assert (seen.state, seen.exit_code) == ("exited", 7)


@pytest.mark.slow
async def test_nothing_is_left_of_a_container_without_supervisor_and_record(
    process_harness: Harness, runtime: ProcessRuntime
) -> None:
    """A process in a session of its own, whose supervisor and guardian were killed."""
    spec = process_harness.shell(f"setsid sh -c '{STUBBORN}' & wait", env={})
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"ready")
    folder = container_dir(runtime, spec.key)
    found = records.look(folder, spec.key)
    assert found is not None
    damage(folder / "started", "torn")
    guardian = int(records._stat(found.supervisor)[1])
    for pid in (guardian, found.supervisor):
        os.kill(pid, 9)
    seen = await ended(runtime, spec.key)
    assert (seen.exit_code, seen.interrupted) == (None, True)
    assert not records._with_environment_of(folder)


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_notes_of_docker_containers_say_nothing(tmp_path: Path, how: str) -> None:
    for name in (docker_runtime._SIGNALLED, docker_disk.STOPPED, "stop"):
        (tmp_path / name).write_text("123 456\n")
        damage(tmp_path / name, how)
    asked = docker_runtime._signalled_before(tmp_path)
    assert asked == []
    stopping.Stopping(docker_runtime._text(tmp_path / "stop"), asked)
    docker_disk.DiskWatch.reason(None, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["zeros", "empty", "garbage"])
async def test_a_damaged_tenant_is_unknown(tmp_path: Path, how: str) -> None:
    """Another tenant's apps could read the files of the first, so the node serves nobody until it is told."""
    runtime = ProcessRuntime("node", tmp_path)
    await runtime.open()
    try:
        runtime._dirs.serve("alice")
        damage(tmp_path / "tenant", how)
        with pytest.raises(Unavailable) as unknown:
            await runtime.ensure(ContainerSpec(KEY, "", ("true",), env={}, resources={}, tenant="bob"))
        assert unknown.value.code == "container.record.damaged"
        assert RunDirs(tmp_path).serve("bob") == ""
    finally:
        await runtime.close()


@pytest.mark.parametrize("how", ["zeros", "empty", "garbage"])
async def test_devices_of_a_damaged_note_are_not_free(tmp_path: Path, how: str) -> None:
    gpus = Gpus(("0", "1"), Ledger(tmp_path), "node")
    gpus.open()
    assert await gpus.take(KEY, 1) == ("0",)
    damage(tmp_path / "app-1-0.devices", how)
    with capture_logs() as logs:
        for _ in range(2):
            await gpus.settle()
            with pytest.raises(Unavailable) as unknown:
                await gpus.take(OTHER, 1)
            assert unknown.value.code == "container.record.damaged"
    assert len(logs) == 1, "it is named once"
    assert await gpus.take(KEY, 1) == ("0",), "its own container takes devices again"
    assert await gpus.take(OTHER, 1) == ("1",)
