"""How every runtime asks containers to stop: a part of the suite of all runtimes (`agents.runtime.stopping`)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.agents.harness import PATIENCE_S, Harness, look, output, says

if TYPE_CHECKING:
    from agents.runtime.interface import ContainerSpec, Runtime

TRAINING = """
import os, signal, sys, time
asked = []
for name in os.environ.get("HANDLED", "SIGTERM").split():
    signal.signal(getattr(signal, name), lambda number, _: asked.append(number))
open("handles", "w").close()
print("ready", flush=True)
while len(asked) < int(os.environ.get("TIMES", "1")):
    time.sleep(0.02)
for line in range(3000):  # more than a pipe holds: a reader that is stopped or has gone would be noticed
    print("saving", line, flush=True)
time.sleep(0.5)
print("saved after", *(signal.Signals(number).name for number in asked), flush=True)
sys.exit(143)
"""
"""Trains until it is asked to stop, and then needs a while to save."""

RUN = "python3 train.py"
WAYS = {
    "directly": RUN,
    "by a shell": f"cd . && {RUN}; echo went on",
    "by a script": f"set -e; echo start; {RUN}; echo went on",
    "by a shell in a shell": f"sh -c '{RUN}; echo went on'; echo went on",
    "in a subshell": f"({RUN}; echo went on); echo went on",
    "with exec": f"echo start; exec {RUN}",
    "in the background": f"{RUN} & wait; echo went on",
    "in a pipe": f"{RUN} 2>&1 | tee train.log; echo went on",
    "in a pipe to the shell": f'{RUN} | while read -r line; do echo "$line"; done; echo went on',
    "captured by the shell": f'all=$({RUN}); echo "$all"; sleep 600',
    "with a trap that ends at once": f"trap 'exit 1' TERM; {RUN} & wait; echo went on",
    "with a trap that passes it on": (
        f"trap 'kill -TERM $child; wait $child; exit 1' TERM; {RUN} & child=$!; wait $child; echo went on"
    ),
    "with SIGTERM ignored": f"trap '' TERM; {RUN}; exit 1",
    "by a launcher": f"python3 -c 'import subprocess, sys; sys.exit(subprocess.call(\"{RUN}\".split()))'; echo went on",
    "by a launcher that reads its output": (
        "python3 -uc 'import subprocess, sys\n"
        f'child = subprocess.Popen("{RUN}".split(), stdout=subprocess.PIPE, text=True)\n'
        'for line in child.stdout: print(line, end="")\''
    ),
    "by a launcher that ends at once": (
        "exec python3 -c 'import os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(1))\n"
        f'subprocess.call("{RUN}".split())\''
    ),
}


def training(harness: Harness, way: str, **fields: object) -> ContainerSpec:
    """A container in which a script runs the training program."""
    return harness.shell(f'cd "$(dirname "$DORM_PROGRESS")"; {way}', files={"train.py": TRAINING}, **fields)


async def words(runtime: Runtime, spec: ContainerSpec) -> list[bytes]:
    """The lines of its output that say something, without those of its long save."""
    return [line for line in (await output(runtime, spec.key)).splitlines() if not line.startswith(b"saving")]


async def handles(runtime: Runtime, spec: ContainerSpec) -> None:
    """Wait until it handles the signal, which it says in a file: a shell may capture its output."""
    note = runtime.run_dir(spec.key) / "handles"
    async with asyncio.timeout(PATIENCE_S):
        while not note.exists():  # noqa: ASYNC110  (no event reports it)
            await asyncio.sleep(0.02)


class StoppingConformance:
    """Everything that the container has started gets the whole grace time."""

    @pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
    async def test_a_program_saves_however_it_was_started(self, harness: Harness, runtime: Runtime, way: str) -> None:
        spec = training(harness, way)
        await runtime.ensure(spec)
        await handles(runtime, spec)
        assert not await runtime.stop(spec.key, PATIENCE_S)
        said = await words(runtime, spec)
        seen = await look(runtime, spec.key)
        assert b"saved after SIGTERM" in said
        assert b"went on" not in said
        assert seen is not None
        assert seen.state == "exited"

    async def test_helpers_are_left_to_their_program(self, harness: Harness, runtime: Runtime) -> None:
        helper = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: (print('helper asked', flush=True), exit()))\n"
        start = f"import subprocess; subprocess.Popen(['python3', '-c', {helper + 'time.sleep(600)'!r}])"
        spec = harness.shell(
            'cd "$(dirname "$DORM_PROGRESS")"; python3 train.py; echo went on',
            files={"train.py": start + TRAINING},
        )
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        assert not await runtime.stop(spec.key, PATIENCE_S)
        said = [line for line in await words(runtime, spec) if line != b"ready"]
        assert said[0] == b"saved after SIGTERM"
        assert b"went on" not in said

    async def test_a_script_without_a_program_that_saves_ends_at_once(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell("echo ready; sleep 600; echo went on; sleep 600")
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        assert not await runtime.stop(spec.key, PATIENCE_S)
        assert b"went on" not in await words(runtime, spec)

    async def test_what_outlives_its_grace_time_is_killed_and_counted(self, harness: Harness, runtime: Runtime) -> None:
        spec = training(harness, f"{RUN}; echo went on", env={"TIMES": "2"})
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        assert await runtime.stop(spec.key, 0.5)
        assert await words(runtime, spec) == [b"ready"]

    async def test_a_trap_may_clean_up(self, harness: Harness, runtime: Runtime) -> None:
        clean = "sh -c 'sleep 0.3; echo cleaned'; exit 1"
        spec = training(harness, f'trap "{clean}" TERM; {RUN}; echo went on')
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        assert not await runtime.stop(spec.key, PATIENCE_S)
        assert (await words(runtime, spec))[-2:] == [b"saved after SIGTERM", b"cleaned"]

    async def test_a_trap_need_not_wait_for_a_command_that_saves_nothing(
        self, harness: Harness, runtime: Runtime
    ) -> None:
        spec = harness.shell("trap 'echo cleaned; exit 1' TERM; echo ready; sleep 600; echo went on")
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        assert not await runtime.stop(spec.key, PATIENCE_S)
        assert [line for line in await words(runtime, spec) if b"Terminated" not in line] == [b"ready", b"cleaned"]

    async def test_a_trap_may_tell_a_program_in_the_background_by_itself(
        self, harness: Harness, runtime: Runtime
    ) -> None:
        waiting = "while ! [ -e asked ]; do sleep 0.05; done; sleep 0.3; echo saved"
        spec = training(harness, f"trap 'touch asked' TERM; sh -c '{waiting}' & touch handles; wait; wait; exit 1")
        await runtime.ensure(spec)
        await handles(runtime, spec)
        assert not await runtime.stop(spec.key, PATIENCE_S)
        assert b"saved" in await words(runtime, spec)

    @pytest.mark.parametrize(
        ("request_to_stop", "handled", "times", "saved"),
        [
            ("SIGUSR1 main 0", "SIGUSR1", "1", b"saved after SIGUSR1"),
            ("SIGUSR1 main 0.3", "SIGUSR1 SIGTERM", "2", b"saved after SIGUSR1 SIGTERM"),
            ("SIGUSR1 main 30", "SIGUSR1 SIGTERM", "1", b"saved after SIGUSR1"),
            ("SIGUSR1 main 30", "SIGTERM", "1", b"saved after SIGTERM"),
            ("SIGINT group 0", "SIGINT", "1", b"saved after SIGINT"),
            ("SIGKILL nobody -", "SIGTERM", "1", b"saved after SIGTERM"),
        ],
    )
    async def test_an_app_chooses_its_signal(
        self, harness: Harness, runtime: Runtime, request_to_stop: str, handled: str, times: str, saved: bytes
    ) -> None:
        spec = training(harness, f"{RUN}; sleep 600", env={"HANDLED": handled, "TIMES": times}, stop=request_to_stop)
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        assert not await runtime.stop(spec.key, PATIENCE_S)
        assert saved in await words(runtime, spec)

    @pytest.mark.parametrize("waiting", ["sleep 600", "sleep 600 & wait"])
    async def test_a_trap_runs_although_its_command_handles_nothing(
        self, harness: Harness, runtime: Runtime, waiting: str
    ) -> None:
        spec = harness.shell(f"trap 'echo cleaned; exit 1' TERM; echo ready; {waiting}; echo went on")
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        assert not await runtime.stop(spec.key, PATIENCE_S)
        said = await words(runtime, spec)
        assert b"cleaned" in said
        assert b"went on" not in said

    async def test_a_trap_may_ask_its_program_in_another_way(self, harness: Harness, runtime: Runtime) -> None:
        """SIGTERM would end the program, which handles another signal."""
        way = f"trap 'kill -USR1 $child; wait $child; exit 1' TERM; {RUN} & child=$!; wait $child; echo went on"
        spec = training(harness, way, env={"HANDLED": "SIGUSR1"})
        await runtime.ensure(spec)
        await handles(runtime, spec)
        assert not await runtime.stop(spec.key, PATIENCE_S)
        said = await words(runtime, spec)
        assert b"saved after SIGUSR1" in said
        assert b"went on" not in said

    async def test_a_shorter_grace_time_that_comes_later_holds(self, harness: Harness, runtime: Runtime) -> None:
        """Also while shells are held, and for a container that nobody would continue."""
        spec = training(harness, f"{RUN}; echo went on", env={"TIMES": "2"})
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        first = asyncio.create_task(runtime.stop(spec.key, 600))
        await asyncio.sleep(0)
        assert await runtime.stop(spec.key, 0.5)
        async with asyncio.timeout(PATIENCE_S):
            await first
        assert await words(runtime, spec) == [b"ready"]
        seen = await look(runtime, spec.key)
        assert seen is not None
        assert seen.exit_code

    async def test_a_program_that_ends_while_no_agent_is_there_ends_its_container(self, harness: Harness) -> None:
        spec = training(harness, f"{RUN}; echo went on")
        async with harness.opened() as before:
            await before.ensure(spec)
            await says(before, spec.key, b"ready")
            stop = asyncio.create_task(before.stop(spec.key, PATIENCE_S))
            await says(before, spec.key, b"saving 0")
            stop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stop
            await says(before, spec.key, b"saved after SIGTERM")
        async with harness.opened() as after:
            assert not await after.stop(spec.key, PATIENCE_S)
            seen = await look(after, spec.key)
            assert seen is not None
            assert seen.state == "exited"
            assert b"went on" not in await words(after, spec)

    async def test_an_agent_that_takes_over_asks_nobody_twice(self, harness: Harness) -> None:
        """A program that took a second SIGTERM as a reason to hurry would lose its checkpoint."""
        spec = training(harness, f"{RUN}; echo went on")
        async with harness.opened() as before:
            await before.ensure(spec)
            await says(before, spec.key, b"ready")
            stop = asyncio.create_task(before.stop(spec.key, PATIENCE_S))
            await says(before, spec.key, b"saving 0")
            stop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stop
        async with harness.opened() as after:
            assert not await after.stop(spec.key, PATIENCE_S)
            assert (await words(after, spec))[-1] == b"saved after SIGTERM"
