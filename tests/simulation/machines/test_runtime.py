"""The simulated runtime passes the conformance suite of runtimes (`tests.agents.runtime.conformance`), in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest

from agents.runtime.interface import Conflict, ContainerSpec, Key, Refused, Seen, Unavailable
from tests.simulation.checks.checks import Checks
from tests.simulation.machines.apps import RESUME, SAVE, START, AppPlan, Program, draw_app, saved_step
from tests.simulation.machines.machine import Machine
from tests.simulation.machines.runtime import SimRuntime
from tests.simulation.world.world import World

KEY = Key("app", 1, 0)
Play = Callable[[SimRuntime], Coroutine[Any, Any, None]]


class Bench:
    """One machine, and agents' lives on it."""

    def __init__(self, world: World, **plan: object) -> None:
        self.world = world
        self.plan: AppPlan = msgspec.structs.replace(draw_app(0, 0, [4000]), trouble=0.0, **plan)
        self.machine = Machine(
            world, world.host("n1"), "n1", cpu=4000, program=self._program, witness=Checks(world, set())
        )
        self.machine.witness.over = True  # type: ignore[attr-defined]
        self.folder = world.folder / "checkpoints"
        self.folder.mkdir()

    def _program(self, container: Any, machine: Machine) -> Program:
        return Program(container, self.plan, 0, machine.later, calm=False)

    def spec(self, key: Key = KEY, *command: str) -> ContainerSpec:
        env = {"DORM_RANK": "0", "DORM_PEERS": "10.0.0.1:20000", "DORM_MASTER_PORT": "0"}
        env["DORM_CHECKPOINT_DIR"] = str(self.folder)
        return ContainerSpec(key, "", command or tuple(START), env, {"cpu": 1000}, str(self.folder))

    def life(self, play: Play, seconds: float = 60.0) -> None:
        """Run an agent's process for this long."""

        async def main(_: object) -> None:
            runtime = SimRuntime(self.machine, random.Random(1))
            await runtime.open()
            await play(runtime)

        process = self.machine.host.start("agent", main)
        self.world.run_for(seconds)
        assert process.error is None
        process.kill()


@pytest.fixture
def world() -> Iterator[World]:
    with World(1, fold=False) as world:
        yield world


async def ended(runtime: SimRuntime) -> Seen:
    await asyncio.sleep(30.0)
    (seen,) = await runtime.list()
    assert seen.state == "exited"
    return seen


def test_completed_work_ends_by_itself(world: World) -> None:
    async def play(runtime: SimRuntime) -> None:
        assert (await runtime.ensure(bench.spec())).state == "running"
        assert (await ended(runtime)).exit_code == 0
        assert (await runtime.ensure(bench.spec())).state == "exited"  # and is never started again
        await runtime.remove(KEY)
        assert await runtime.list() == []

    bench = Bench(world, steps=5)
    bench.life(play)


@pytest.mark.parametrize(
    ("on_term", "killed", "code"), [("save", False, 143), ("leave", False, 143), ("ignore", True, 137)]
)
def test_sigterm_then_sigkill(world: World, on_term: str, killed: bool, code: int) -> None:
    async def play(runtime: SimRuntime) -> None:
        await runtime.ensure(bench.spec())
        await asyncio.sleep(5.0)
        assert await runtime.stop(KEY, 3.0) is killed
        assert (await ended(runtime)).exit_code == code
        assert await runtime.stop(KEY, 3.0) is False
        assert (saved_step(bench.folder) > 0) is (on_term == "save")

    bench = Bench(world, steps=1000, on_term=on_term, term_code=143, checkpoint_every=0)
    bench.life(play)


def test_work_continues_from_the_saved_step_only_on_resume(world: World) -> None:
    async def play(runtime: SimRuntime) -> None:
        await runtime.ensure(bench.spec())
        await asyncio.sleep(10.0)
        assert await runtime.run(KEY, tuple(SAVE), 5.0) in (0, 124)
        await runtime.stop(KEY, 3.0)
        assert saved_step(bench.folder) > 0
        for number, command in ((2, RESUME), (3, START)):
            await runtime.ensure(bench.spec(Key("app", number, 0), *command))
            begun[number] = bench.machine.containers[Key("app", number, 0)].program.begun  # type: ignore[union-attr]

    begun: dict[int, int] = {}
    bench = Bench(world, steps=1000, on_term="save")
    bench.life(play)
    assert begun[2] > 0 == begun[3]


def test_an_agents_death_changes_nothing_for_its_containers(world: World) -> None:
    async def start(runtime: SimRuntime) -> None:
        await runtime.ensure(bench.spec())

    async def adopt(runtime: SimRuntime) -> None:
        seen.extend(await runtime.list())
        assert await runtime.ensure(bench.spec()) == seen[0]

    seen: list[Seen] = []
    bench = Bench(world, steps=1000)
    bench.life(start, seconds=5.0)
    world.run_for(5.0)
    bench.life(adopt, seconds=5.0)
    assert [one.state for one in seen] == ["running"]


def test_when_the_lease_is_over_everything_dies_agent_or_not(world: World) -> None:
    async def start(runtime: SimRuntime) -> None:
        assert await runtime.lease_left() is None
        await runtime.extend_lease(4.0)
        await runtime.ensure(bench.spec())

    async def late(runtime: SimRuntime) -> None:
        left.append(await runtime.lease_left())
        with pytest.raises(Unavailable):
            await runtime.ensure(bench.spec(Key("app", 2, 0)))

    left: list[float | None] = []
    bench = Bench(world, steps=1000)
    bench.life(start, seconds=3.0)
    assert bench.machine.running()
    world.run_for(5.0)
    assert not bench.machine.running()
    assert bench.machine.containers[KEY].seen().lease_ended
    bench.life(late, seconds=4.0)
    assert left[0] is not None
    assert left[0] < 0
    assert not bench.machine.running()


def test_a_stopped_engine_answers_nothing_but_may_still_act(world: World) -> None:
    async def play(runtime: SimRuntime) -> None:
        bench.machine.delay_s = 30.0
        with pytest.raises(Unavailable):
            await runtime.ensure(bench.spec())
        bench.machine.delay_s = 0.02
        await asyncio.sleep(40.0)
        assert [seen.state for seen in await runtime.list()] == ["created"]
        bench.machine.stop_engine(live_restore=True)
        with pytest.raises(Unavailable):
            await runtime.list()
        bench.machine.start_engine()
        assert (await runtime.ensure(bench.spec())).state == "running"

    bench = Bench(world, steps=1000)
    bench.life(play)


def test_refusals_and_conflicts(world: World) -> None:
    async def play(runtime: SimRuntime) -> None:
        bench.machine.image_missing = True
        with pytest.raises(Refused):
            await runtime.ensure(bench.spec())
        assert await runtime.list() == []
        bench.machine.image_missing = False
        await runtime.ensure(bench.spec())
        with pytest.raises(Conflict):
            await runtime.ensure(bench.spec(KEY, "other"))
        with pytest.raises(Conflict):
            await runtime.remove(KEY)
        with pytest.raises(KeyError):
            await runtime.run(Key("app", 9, 0), tuple(SAVE), 1.0)

    bench = Bench(world, steps=1000)
    bench.life(play)


def test_a_loss_of_power_ends_containers_and_loses_the_last_lines(world: World) -> None:
    async def start(runtime: SimRuntime) -> None:
        await runtime.extend_lease(600.0)
        await runtime.ensure(bench.spec())

    async def look(runtime: SimRuntime) -> None:
        seen.extend(await runtime.list())
        assert (await runtime.lease_left() or 1.0) <= 0

    seen: list[Seen] = []
    bench = Bench(world, steps=1000, step_s=1.0)
    bench.life(start, seconds=20.0)
    progress = bench.machine.containers[KEY].folder / "progress.jsonl"
    before = len(progress.read_text().splitlines())
    bench.machine.lose_power(tail=True)
    world.run_for(2.0)
    bench.machine.boot()
    bench.life(look, seconds=5.0)
    assert [one.state for one in seen] == ["exited"]
    assert 0 < len(progress.read_text().splitlines()) < before
