"""The operator's program decides by its exit code, within bounds, and nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import psutil
import pytest

from agents.fitness import LONGEST_LINE, HealthProgram, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

WAIT_S = 20.0


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "healthy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@contextlib.asynccontextmanager
async def running(program: HealthProgram) -> AsyncIterator[asyncio.Event]:
    changed = asyncio.Event()
    task = asyncio.create_task(program.run(changed.set))
    try:
        async with asyncio.timeout(WAIT_S):
            yield changed
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what other processes do sets no event
            await asyncio.sleep(0.01)


async def verdict(path: Path, timeout_s: float = 20.0) -> Verdict | None:
    program = HealthProgram(path, timeout_s=timeout_s, variables={"DORM_NODE": "n1"})
    async with running(program) as changed:
        await changed.wait()
    return program.verdict


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit 0", Verdict(True)),
        ("echo all is well", Verdict(True)),
        ("echo; echo '  GPU 3 \tis gone'; echo more; exit 1", Verdict(False, "GPU 3 is gone")),
        ("echo to stderr >&2; exit 7", Verdict(False, "to stderr")),
        ("exit 7", Verdict(False, "it ended with exit code 7")),
        ("kill -9 $$", Verdict(False, "it was ended by signal 9")),
        ('printf "\\033[31m\\377red\\n"; exit 1', Verdict(False, "[31m\N{REPLACEMENT CHARACTER}red")),
        (
            '[ "$DORM_NODE" = n1 ] && [ "$PWD" = / ] && [ -z "$HIDDEN" ] && [ ! -t 0 ] && read x; [ -z "$x" ]',
            Verdict(True),
        ),
    ],
)
async def test_the_exit_code_decides_and_the_first_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: Verdict
) -> None:
    monkeypatch.setenv("HIDDEN", "from the agent's own environment")
    assert await verdict(script(tmp_path, text)) == expected


async def test_a_program_that_can_not_be_started_fails(tmp_path: Path) -> None:
    found = await verdict(tmp_path / "missing")
    assert found == Verdict(False, f"{tmp_path / 'missing'} can't be started: No such file or directory")


async def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = (
        f"echo checking; sleep 600 & echo $! >> {pids}; setsid sleep 600 & echo $! >> {pids}; echo $$ >> {pids}; wait"
    )
    found = await verdict(script(tmp_path, text), timeout_s=0.5)
    assert found == Verdict(False, "it did not end within 0.5 s (its output: checking)")
    assert len(pids.read_text().split()) == 3
    await until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def test_what_it_leaves_in_the_background_is_killed_and_delays_nothing(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    assert await verdict(script(tmp_path, f"sleep 600 & echo $! > {pids}; echo broken; exit 1")) == Verdict(
        False, "broken"
    )
    await until(lambda: not alive(int(pids.read_text())))


async def test_a_flood_of_output_is_cut_off(tmp_path: Path) -> None:
    found = await verdict(script(tmp_path, "exec yes much"))
    assert found == Verdict(False, "it writes too much (its output: much)")
    long = await verdict(script(tmp_path, "printf '%05000d\\n' 1; exit 1"))
    assert long is not None
    assert len(long.why) == LONGEST_LINE


async def test_it_runs_again_and_reports_only_changes(tmp_path: Path) -> None:
    flag, count = tmp_path / "flag", tmp_path / "count"
    program = HealthProgram(script(tmp_path, f"echo >> {count}; [ -e {flag} ]"), every_s=0.02)
    async with running(program) as changed:
        await changed.wait()
        changed.clear()
        seen = len(count.read_text())
        await until(lambda: len(count.read_text()) >= seen + 3)
        assert not changed.is_set()
        flag.touch()
        await changed.wait()
        assert program.verdict == Verdict(True)


async def test_before_a_node_returns_only_a_new_answer_counts(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    program = HealthProgram(script(tmp_path, f"[ ! -e {flag} ]"), every_s=600)
    async with running(program) as changed:
        await changed.wait()
        assert program.verdict == Verdict(True)
        flag.touch()
        await program.again(WAIT_S)
        assert program.verdict == Verdict(False, "it ended with exit code 1")


async def test_it_ends_with_the_agent(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = HealthProgram(script(tmp_path, f"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 600"))
    open_before = len(os.listdir("/proc/self/fd"))
    async with running(program):
        await until(pid.exists)
    assert not alive(int(pid.read_text()))
    assert len(os.listdir("/proc/self/fd")) <= open_before + 1
