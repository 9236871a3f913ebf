"""What the process runtime makes of supervisors that were killed and of records that speak of other processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from agents import node_lease
from agents.runtime.process import records, supervisor
from agents.runtime.process.runtime import ProcessRuntime
from tests.agents.harness import (
    PATIENCE_S,
    POLITE,
    STUBBORN,
    Harness,
    container_dir,
    ended,
    look,
    output,
    processes,
    says,
)
from tests.agents.runtime.conformance import COUNT_ME, lines, starts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agents.runtime.interface import ContainerSpec, Key

pytestmark = pytest.mark.slow


@pytest.fixture
async def runtime(process_harness: Harness) -> AsyncIterator[ProcessRuntime]:
    async with process_harness.opened() as runtime:
        assert isinstance(runtime, ProcessRuntime)
        yield runtime


def folder(runtime: ProcessRuntime, key: Key) -> Path:
    return container_dir(runtime, key)


def found(runtime: ProcessRuntime, key: Key) -> records.Found:
    there = records.look(folder(runtime, key), key)
    assert there is not None
    return there


async def kill_and_wait(*pids: int) -> None:
    """kill -9; returns when they are dead, no matter which process reaps them."""
    descriptors = [os.pidfd_open(pid) for pid in pids]
    for descriptor in descriptors:
        with contextlib.suppress(ProcessLookupError):  # it died with the one before
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ready, _, _ = await asyncio.to_thread(select.select, [descriptor], [], [], PATIENCE_S)
        os.close(descriptor)
        assert ready


UNTIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
"""Makes a program that outlives its supervisor, as those did that were started before 0.6.0."""


async def orphan(runtime: ProcessRuntime, spec: ContainerSpec) -> ContainerSpec:
    """Start it untied, then kill -9 its guardian and its supervisor; return what was started."""
    spec = msgspec.structs.replace(spec, command=(sys.executable, "-c", UNTIED, *spec.command))
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"ready")
    supervisor = found(runtime, spec.key).supervisor
    await kill_and_wait(psutil.Process(supervisor).ppid(), supervisor)
    assert found(runtime, spec.key).supervisor == 0
    return spec


async def test_the_process_runtime_states_that_it_limits_nothing(
    runtime: ProcessRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runtime.limits is False
    await runtime.close()
    await runtime.open()
    assert "limits nothing" in capsys.readouterr().out


async def test_an_orphan_runs_on_and_can_be_stopped(process_harness: Harness, runtime: ProcessRuntime) -> None:
    spec = await orphan(runtime, process_harness.shell(COUNT_ME + POLITE))
    assert (await runtime.ensure(spec)).state == "running"
    assert await runtime.use(spec.key) is not None
    assert await runtime.run(spec.key, ("true",), PATIENCE_S) == 0
    await runtime.stop(spec.key, PATIENCE_S)
    seen = await look(runtime, spec.key)
    assert seen is not None
    assert (seen.state, seen.exit_code, seen.error) == ("exited", None, "")
    assert seen.exited_at >= seen.started_at > 0
    assert lines(await output(runtime, spec.key)) == [b"ready", b"bye"]
    assert starts(runtime, spec.key) == 1
    assert await look(runtime, spec.key) == seen  # the time of its end does not move


async def test_a_stubborn_orphan_is_killed_with_its_family(
    process_harness: Harness, runtime: ProcessRuntime, unused_number: str
) -> None:
    family = f"sleep {unused_number} & setsid sleep {unused_number} & {STUBBORN}"
    spec = await orphan(runtime, process_harness.shell(family))
    await runtime.stop(spec.key, 0.1)
    assert found(runtime, spec.key).seen.state == "exited"
    # A killed process takes a moment to be gone on a busy machine.
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes(unused_number), PATIENCE_S)
    assert alive == []


async def test_the_end_of_an_orphan_gives_a_hint_and_is_cleaned_up(
    process_harness: Harness, runtime: ProcessRuntime, unused_number: str
) -> None:
    spec = await orphan(runtime, process_harness.shell(f"sleep {unused_number} & {POLITE}"))
    waiting = asyncio.create_task(ended(runtime, spec.key))
    os.kill(found(runtime, spec.key).program, signal.SIGTERM)
    assert (await waiting).exit_code is None
    assert processes(unused_number) == []


async def test_an_orphan_is_adopted(process_harness: Harness) -> None:
    async with process_harness.opened() as before:
        assert isinstance(before, ProcessRuntime)
        spec = await orphan(before, process_harness.shell(POLITE))
    async with process_harness.opened() as after:
        assert (await after.list())[0].state == "running"
        await after.stop(spec.key, PATIENCE_S)
        assert (await after.list())[0].exit_code is None


async def test_supervisor_and_program_killed_while_no_agent_was_there(process_harness: Harness) -> None:
    spec = process_harness.shell(POLITE)
    async with process_harness.opened() as before:
        assert isinstance(before, ProcessRuntime)
        await before.ensure(spec)
        both = found(before, spec.key)
    await kill_and_wait(both.supervisor, both.program)
    async with process_harness.opened() as after:
        seen = (await after.list())[0]
        assert (seen.state, seen.exit_code) == ("exited", None)
        assert await after.ensure(spec) == seen


@pytest.mark.parametrize("after_ms", [0, 0.3, 0.6, 1, 1.5, 2, 3, 5, 10])
async def test_a_supervisor_killed_anywhere_never_starts_it_twice(
    process_harness: Harness, runtime: ProcessRuntime, after_ms: float
) -> None:
    spec = process_harness.shell(COUNT_ME + POLITE)
    starting = asyncio.create_task(asyncio.to_thread(_kill_when_it_locks, folder(runtime, spec.key), after_ms / 1000))
    with contextlib.suppress(Exception):  # it may see its supervisor fail; then the next call continues
        await runtime.ensure(spec)
    assert await starting, "no supervisor was there to be killed"
    seen = await runtime.ensure(spec)
    if found(runtime, spec.key).supervisor:  # another one, since the first was killed before its record of a start
        await says(runtime, spec.key, b"ready")
        assert starts(runtime, spec.key) == 1
    else:  # what it had started dies with it, maybe before the program's first instruction
        seen = await ended(runtime, spec.key)
        assert (seen.state, seen.exit_code) == ("exited", None)
        assert starts(runtime, spec.key) <= 1


def _kill_when_it_locks(here: Path, after_s: float) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        pid = records.lock_holder(here / "lock")
        if pid:
            time.sleep(after_s)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # Until it is dead its lock looks like a living supervisor's.
            while records.lock_holder(here / "lock") == pid and time.monotonic() < deadline:
                time.sleep(0.001)
            return True
    return False


async def test_a_supervisor_that_can_list_no_processes_tries_again(
    process_harness: Harness, runtime: ProcessRuntime
) -> None:
    spec = process_harness.shell(POLITE)
    await runtime.extend_lease(600.0)
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"ready")
    watching = psutil.Process(found(runtime, spec.key).supervisor)
    usual = watching.rlimit(psutil.RLIMIT_NOFILE)
    watching.rlimit(psutil.RLIMIT_NOFILE, (1, usual[1]))
    stop = asyncio.create_task(runtime.stop(spec.key, PATIENCE_S))
    notes = runtime._dirs.container_dir(spec.key) / "supervisor.log"
    async with asyncio.timeout(PATIENCE_S):
        while "can't be listed" not in notes.read_text():  # noqa: ASYNC110  (no event reports it)
            await asyncio.sleep(0.02)
    watching.rlimit(psutil.RLIMIT_NOFILE, usual)
    assert not await stop
    assert (await ended(runtime, spec.key)).exit_code == 7


async def test_a_second_supervisor_leaves_it_alone(process_harness: Harness, runtime: ProcessRuntime) -> None:
    spec = process_harness.shell(COUNT_ME + POLITE)
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"ready")
    for _ in range(2):  # next to the first one, and after its end
        second = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            supervisor.__file__,
            str(folder(runtime, spec.key)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert (await second.communicate())[0] == b"busy"
        await runtime.stop(spec.key, PATIENCE_S)
    assert starts(runtime, spec.key) == 1


async def test_another_process_with_the_recorded_pid_is_not_mistaken_for_it(
    process_harness: Harness, runtime: ProcessRuntime
) -> None:
    """The record names this very test process, which must survive."""
    spec = process_harness.shell("exit 0")
    await runtime.ensure(spec)
    await ended(runtime, spec.key)
    here = folder(runtime, spec.key)
    own = node_lease.start_time(os.getpid())
    for start_time, boot in ((str(int(own) + 1), node_lease.boot_id()), (own, "another-boot")):
        (here / "exited").unlink()
        (here / "started").write_text(f"{os.getpid()} {start_time} {boot} {time.time_ns()}")
        await runtime.stop(spec.key, 0)
        seen = await look(runtime, spec.key)
        assert seen is not None
        assert (seen.state, seen.exit_code) == ("exited", None)
        assert seen.interrupted is (boot == "another-boot")


@pytest.mark.slow
async def test_a_log_beyond_its_cap_moves_aside(process_harness: Harness, tmp_path: Path) -> None:
    small = ProcessRuntime("node", tmp_path / "node", log_cap=10_000)
    await small.open()
    script = "i=0; while :; do i=$((i+1)); echo line $i; [ $((i % 500)) = 0 ] && sleep 0.01; done"
    spec = process_harness.shell(script)
    await small.ensure(spec)
    aside = folder(small, spec.key) / "log.1"
    async with asyncio.timeout(PATIENCE_S):
        chunks = small.logs(spec.key, follow=True, tail=5)
        async for _ in chunks:
            if aside.exists():
                break
        assert lines(await anext(chunks))[-1].startswith(b"line")  # following continues in the emptied file
        await chunks.aclose()
    await small.stop(spec.key, 0)
    assert aside.stat().st_size <= 10_000
    assert len(lines(await output(small, spec.key, tail=3))) == 3
    await small.close()


async def test_a_start_is_cheap(process_harness: Harness, runtime: ProcessRuntime) -> None:
    """CPU time of the supervisor when it has started a program: a tenth of a second would be felt with many."""
    spec = process_harness.shell(POLITE)
    await runtime.ensure(spec)
    times = psutil.Process(found(runtime, spec.key).supervisor).cpu_times()
    assert times.user + times.system < 0.1
