"""The loop in virtual time, and the tasks of killed and paused processes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.simulation.world.loop import Deadlock, Livelock
from tests.simulation.world.world import Broken, World

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.simulation.world.process import Process


def test_time_jumps() -> None:
    with World(1) as world:
        woken: list[tuple[str, int]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((name, round(asyncio.get_running_loop().time())))

        async def main(process: Process) -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(sleeper("b", 7200))
                tasks.create_task(sleeper("a", 3600))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(10):
                        await asyncio.Event().wait()
                woken.append(("timeout", round(asyncio.get_running_loop().time())))

        process = world.host("h").start("p", main)
        assert world.run_until(lambda: process.ended, within=8000, every=100)
        assert woken == [("timeout", 10), ("a", 3600), ("b", 7200)]
        assert process.error is None


def test_no_app_waits_for_nothing() -> None:
    with World(1) as world, pytest.raises(Deadlock):
        world.loop.run_until_complete(asyncio.Event().wait())


def test_endless_loops_are_detected() -> None:
    async def circle() -> None:
        while True:  # noqa: ASYNC110 - which is what is to be found.
            await asyncio.sleep(0)

    with World(1) as world, pytest.raises(Livelock):
        world.loop.run_until_complete(circle())


def test_an_unretrieved_exception_ends_the_run() -> None:
    async def fail() -> None:
        raise ValueError("unseen")

    async def main(process: Process) -> None:
        process.spawn(fail())
        await asyncio.sleep(1)

    with World(1) as world:
        world.host("h").start("p", main)
        with pytest.raises(Broken, match="unseen"):
            world.run_for(5)


def test_a_failed_check_ends_the_run_even_if_it_is_caught() -> None:
    with World(3) as world:

        async def main(process: Process) -> None:
            await asyncio.sleep(2)
            with contextlib.suppress(AssertionError):
                world.fail("two at once")
            await asyncio.sleep(100)

        world.host("h").start("p", main)
        with pytest.raises(Broken, match=r"seed 3, at 2.000 s, record 0: two at once"):
            world.run_for(50)
        assert world.now < 3


class Story:
    """A process that records each of its steps, and every `finally` block."""

    def __init__(self) -> None:
        self.marks: list[str] = []

    async def generator(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                await asyncio.sleep(0.1)
                yield number
        finally:
            self.marks.append("generator closed")

    async def child(self, name: str) -> None:
        try:
            await asyncio.sleep(0.05)
            await asyncio.to_thread(self.marks.append, f"{name} in a thread")
            async for number in self.generator():
                self.marks.append(f"{name} {number}")
        finally:
            self.marks.append(f"{name} done")

    async def main(self, process: Process) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.child("one"))
                tasks.create_task(self.child("two"))
            self.marks.append("end")
        finally:
            self.marks.append("finally")


def marks_of(crash_in: int) -> tuple[list[str], int, bool]:
    story = Story()
    with World(1) as world:
        process = world.host("h").start("p", story.main)
        if crash_in:
            process.kill(crash_in=crash_in)
        world.run_for(10)
        marks = list(story.marks)
        assert process.ended
        return marks, process.steps, process.error is None


def test_a_process_dies_at_any_step_and_nothing_of_it_runs_after() -> None:
    whole, steps, _ = marks_of(0)
    assert whole[-2:] == ["end", "finally"]
    assert steps > 20
    seen = set()
    for step in range(1, steps + 1):
        marks, ran, _ = marks_of(step)
        assert ran == step
        assert marks == whole[: len(marks)]
        seen.add(len(marks))
    assert len(seen) > 8


def test_clean_up_at_the_end_is_not_part_of_the_run() -> None:
    story = Story()
    with World(1) as world:
        process = world.host("h").start("p", story.main)
        world.run_for(0.2)
        process.kill()
        world.run_for(100)
        marks = list(story.marks)
        assert not any(mark in marks for mark in ("finally", "one done", "generator closed"))
    assert "finally" in story.marks  # So that Python issues no warnings.


def paused_for(seconds: float) -> tuple[list[tuple[int, int]], Process]:
    with World(1) as world:
        marks: list[tuple[int, int]] = []

        async def main(process: Process) -> None:
            for number in range(4):
                async with asyncio.timeout(3):
                    await asyncio.sleep(1)
                marks.append((number, round(world.now)))

        process = world.host("h").start("p", main)
        world.run_for(2.5)
        process.pause()
        world.run_for(seconds)
        assert marks == [(0, 1), (1, 2)]
        process.resume()
        world.run_for(20)
        return marks, process


def test_a_paused_process_continues_late() -> None:
    marks, process = paused_for(1.5)
    assert marks[2:] == [(2, 4), (3, 5)]
    assert process.error is None


def test_a_process_that_was_paused_for_long_finds_its_timeouts_over() -> None:
    marks, process = paused_for(10)
    assert len(marks) == 2
    assert isinstance(process.error, TimeoutError)


def test_a_signal_reaches_a_paused_process_when_it_resumes() -> None:
    with World(1) as world:
        ends: list[str] = []

        async def main(process: Process) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                ends.append("cleanly")

        process = world.host("h").start("p", main)
        process.on_end(lambda ended: ends.append(f"{ended.name} is gone"))
        world.run_for(1)
        process.pause()
        process.stop()
        world.run_for(5)
        assert ends == []
        process.resume()
        world.run_for(1)
        assert ends == ["cleanly", "p is gone"]
        assert process.error is None


def test_a_host_has_a_clock_of_its_own() -> None:
    with World(1) as world:
        one, other = world.host("one"), world.host("other", skew_s=5.0)
        assert other.clock() - one.clock() == 5_000_000_000
        one.step_clock(-3600)
        assert other.clock() - one.clock() == 3605_000_000_000
        before = one.clock()
        world.run_for(60)
        assert one.clock() - before == 60_000_000_000
