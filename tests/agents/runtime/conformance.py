"""The contract of every runtime, as tests: `class TestX(RuntimeConformance)` runs them with the fixture `harness` it sees.

Programs are shell scripts that every image has; they say on stdout when they are ready, and tests wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from agents.runtime.interface import PROGRESS_FILE, Conflict, Key, Refused, Runtime
from tests.agents.harness import PATIENCE_S, POLITE, STUBBORN, Harness, ended, look, output, processes, says, until
from tests.agents.killed_agent import start_and_kill
from tests.agents.runtime.lease_conformance import LeaseConformance
from tests.agents.runtime.output.conformance import OutputConformance
from tests.agents.runtime.paths.conformance import PathsConformance
from tests.agents.runtime.stopping_conformance import StoppingConformance
from tests.agents.volumes.conformance import VolumesConformance
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

COUNT_ME = 'echo x >> "$(dirname "$DORM_PROGRESS")/starts"; '


def starts(runtime: Runtime, key: Key) -> int:
    """How often a program that begins with COUNT_ME was started."""
    file = runtime.run_dir(key) / "starts"
    return len(file.read_text().splitlines()) if file.exists() else 0


def lines(written: bytes) -> list[bytes]:
    """Without the messages of some shells when SIGTERM ends their child."""
    return [line for line in written.splitlines() if b"Terminated" not in line]


class RuntimeConformance(
    LeaseConformance, VolumesConformance, OutputConformance, PathsConformance, StoppingConformance
):
    """The suite; subclasses add only marks and further tests."""

    # starting and ending

    @pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
    async def test_exit_codes_and_times_are_recorded(
        self, harness: Harness, runtime: Runtime, script: str, code: int
    ) -> None:
        spec = harness.shell(script)
        await runtime.ensure(spec)
        seen = await ended(runtime, spec.key)
        assert (seen.exit_code, seen.error, seen.out_of_memory) == (code, "", False)
        assert 0 < seen.started_at <= seen.exited_at

    async def test_a_started_container_is_listed_as_running(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(POLITE)
        seen = await runtime.ensure(spec)
        assert seen.state == "running"
        assert seen.started_at > 0
        assert (seen.exit_code, seen.exited_at) == (None, 0)
        assert await runtime.list() == [seen]

    async def test_ensure_never_starts_it_again(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(COUNT_ME + "echo ready; read -r _ < /dev/zero; exit 4")
        first = await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        assert await runtime.ensure(spec) == first
        await runtime.stop(spec.key, 0)
        after = await runtime.ensure(spec)
        assert (after.state, after.exit_code) == ("exited", 137)
        assert starts(runtime, spec.key) == 1

    async def test_a_prepared_container_does_not_run_yet(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(COUNT_ME + POLITE)
        for _ in range(2):
            await runtime.prepare(spec)
            (seen,) = await runtime.list()
            assert (seen.key, seen.state, seen.started_at) == (spec.key, "created", 0)
        started = await runtime.ensure(spec)
        assert (started.state, started.spec_hash) == ("running", seen.spec_hash)
        await runtime.prepare(spec)
        assert [one.state for one in await runtime.list()] == ["running"]
        assert starts(runtime, spec.key) <= 1

    async def test_a_prepared_container_can_be_replaced(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell("exit 3")
        await runtime.prepare(spec)
        await runtime.remove(spec.key)
        assert await runtime.list() == []
        await runtime.ensure(msgspec.structs.replace(spec, command=harness.shell("exit 4").command))
        assert (await ended(runtime, spec.key)).exit_code == 4

    async def test_files_are_there_from_the_start_and_are_replaced_whole(
        self, harness: Harness, runtime: Runtime
    ) -> None:
        spec = harness.shell('cat "$(dirname "$DORM_PROGRESS")/members.json"; ' + POLITE)
        await runtime.ensure(spec, {"members.json": b"first\n"})
        await says(runtime, spec.key, b"first")
        link = runtime.run_dir(spec.key) / "members.json"
        link.unlink()
        link.symlink_to("elsewhere")
        await runtime.put(spec.key, "members.json", b"second\n")
        assert link.read_bytes() == b"second\n"
        assert not link.is_symlink(), "the app can't make the agent write where its link leads"
        assert [path.name for path in link.parent.iterdir() if "members" in path.name] == ["members.json"]
        with pytest.raises(KeyError):
            await runtime.put(Key("nobody", 1, 0), "members.json", b"")

    async def test_concurrent_calls_make_one_container(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(COUNT_ME + POLITE)
        seen = await asyncio.gather(*(runtime.ensure(spec) for _ in range(5)))
        assert len(set(map(repr, seen))) == 1
        await says(runtime, spec.key, b"ready")
        assert starts(runtime, spec.key) == 1

    @pytest.mark.parametrize("after_ms", [0, 1, 3, 8, 15, 25, 40, 70, 120])
    async def test_a_cancelled_start_converges(self, harness: Harness, runtime: Runtime, after_ms: int) -> None:
        spec = harness.shell(COUNT_ME + POLITE)
        task = asyncio.create_task(runtime.ensure(spec))
        await asyncio.wait([task], timeout=after_ms / 1000)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert (await runtime.ensure(spec)).state == "running"
        await says(runtime, spec.key, b"ready")
        assert starts(runtime, spec.key) == 1
        assert len(await runtime.list()) == 1

    async def test_another_spec_for_the_same_key_is_a_conflict(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(POLITE)
        await runtime.ensure(spec)
        with pytest.raises(Conflict):
            await runtime.ensure(msgspec.structs.replace(spec, env={"A": "b"}))

    async def test_a_missing_command_is_refused_and_leaves_nothing(self, harness: Harness, runtime: Runtime) -> None:
        for command in ("no-such-command", "/no/such/command", "/etc/passwd", "/usr"):
            spec = harness.spec(command, "argument")
            for _ in range(2):  # the second time as the first
                with raises(Refused, "container.command.not_found", command) as refused:
                    await runtime.ensure(spec)
                assert refused.value.cause == "command"
            assert await runtime.list() == []
            assert not runtime.run_dir(spec.key).exists()

    @pytest.mark.parametrize(
        "wrong",
        [
            {"command": ()},
            {"command": ("",)},
            {"command": ("sh", "a\0b")},
            {"env": {"A=B": "c"}},
            {"env": {"": "c"}},
            {"env": {"A": "\0"}},
            {"resources": {"memory": -1}},
            {"key": Key("../../up", 1, 0)},
            {"key": Key("", 1, 0)},
            {"key": Key("app", -1, 0)},
        ],
        ids=repr,
    )
    async def test_nonsense_is_refused(self, harness: Harness, runtime: Runtime, wrong: dict[str, object]) -> None:
        with pytest.raises(Refused) as refused:
            await runtime.ensure(harness.shell(POLITE, **wrong))
        assert refused.value.cause == "spec"
        assert await runtime.list() == []

    async def test_the_list_is_sorted_by_key(self, harness: Harness, runtime: Runtime) -> None:
        keys = [Key("b", 1, 2), Key("b", 1, 10), Key("a", 10, 0), Key("a-2-1", 3, 0), Key("a", 9, 0)]
        await asyncio.gather(*(runtime.ensure(harness.shell("exit 0", key=key)) for key in keys))
        assert [seen.key for seen in await runtime.list()] == sorted(keys)

    async def test_its_engines_folder_is_on_this_machine(self, runtime: Runtime) -> None:
        assert runtime.engine_folder is None or runtime.engine_folder.is_dir()
        assert runtime.serves == "", "no tenant has come yet"

    # stopping

    async def test_sigterm_is_obeyed(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(POLITE)
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        assert not await runtime.stop(spec.key, PATIENCE_S)
        seen = await look(runtime, spec.key)
        assert seen is not None
        assert (seen.state, seen.exit_code) == ("exited", 7)
        assert lines(await output(runtime, spec.key)) == [b"ready", b"bye"]

    async def test_a_process_that_ignores_sigterm_is_killed(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(STUBBORN)
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        assert await runtime.stop(spec.key, 0.2)
        seen = await look(runtime, spec.key)
        assert seen is not None
        assert (seen.state, seen.exit_code) == ("exited", 137)

    async def test_sigterm_reaches_the_whole_group(self, harness: Harness, runtime: Runtime) -> None:
        child = "trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.05; done"
        spec = harness.shell(f'trap "wait; exit 9" TERM; sh -c "{child}" & wait')
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        await runtime.stop(spec.key, PATIENCE_S)
        assert b"child" in await output(runtime, spec.key)

    async def test_a_second_stop_may_be_less_patient(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(STUBBORN)
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        patient = asyncio.create_task(runtime.stop(spec.key, 600))
        await runtime.stop(spec.key, 0)
        async with asyncio.timeout(PATIENCE_S):
            await patient

    async def test_stopping_an_absent_container_is_not_an_error(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell("exit 5")
        assert not await runtime.stop(spec.key, 1)
        await runtime.ensure(spec)
        await ended(runtime, spec.key)
        assert not await runtime.stop(spec.key, 1)
        seen = await look(runtime, spec.key)
        assert seen is not None
        assert seen.exit_code == 5

    @pytest.mark.parametrize("end", ["exit 0", STUBBORN], ids=["exits", "killed"])
    async def test_no_process_outlives_its_container(
        self, harness: Harness, runtime: Runtime, end: str, unused_number: str
    ) -> None:
        spec = harness.shell(f"setsid sleep {unused_number} & (sleep {unused_number} &) ; echo ready; {end}")
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        await runtime.stop(spec.key, 0)
        await ended(runtime, spec.key)
        assert processes(unused_number) == []

    # an agent's restart

    async def test_another_agent_adopts(self, harness: Harness) -> None:
        running, finished, finishing = harness.shell(POLITE), harness.shell("exit 3"), harness.shell(POLITE)
        async with harness.opened() as before:
            for spec in (running, finished, finishing):
                await before.ensure(spec)
            await ended(before, finished.key)
            for spec in (running, finishing):
                await says(before, spec.key, b"ready")
            listed = await before.list()
        async with harness.opened() as after:
            assert await after.list() == listed
            assert await after.ensure(running) == listed[0]
            await after.stop(running.key, PATIENCE_S)
            stop = asyncio.create_task(after.stop(finishing.key, PATIENCE_S))
            assert (await ended(after, finishing.key)).exit_code == 7
            await stop
            assert [seen.exit_code for seen in await after.list()] == [7, 3, 7]
            assert lines(await output(after, running.key)) == [b"ready", b"bye"]

    async def test_an_end_between_two_agents_is_recorded(self, harness: Harness) -> None:
        spec = harness.shell('cd "$(dirname "$DORM_PROGRESS")"; while ! [ -e go ]; do sleep 0.02; done; exit 6')
        async with harness.opened() as before:
            await before.ensure(spec)
            go = before.run_dir(spec.key) / "go"
        go.touch()
        async with harness.opened() as after:
            seen = await ended(after, spec.key)
            assert (seen.exit_code, seen.error) == (6, "")

    @pytest.mark.slow
    @pytest.mark.parametrize("after_ms", [0, 5, 10, 20, 35, 50, 75, 110, None])
    async def test_another_agent_completes_a_start(self, harness: Harness, after_ms: float | None) -> None:
        spec = harness.shell(COUNT_ME + POLITE)
        await start_and_kill(harness.expression, spec, None if after_ms is None else after_ms / 1000)
        async with harness.opened() as runtime:
            assert (await runtime.ensure(spec)).state == "running"
            await says(runtime, spec.key, b"ready")
            assert starts(runtime, spec.key) == 1
            assert len(await runtime.list()) == 1
            await runtime.stop(spec.key, PATIENCE_S)
            assert (await runtime.list())[0].exit_code == 7

    # one agent

    async def test_one_agent_at_a_time(self, harness: Harness, runtime: Runtime) -> None:
        with pytest.raises(Conflict):
            await harness.make().open()
        assert await runtime.list() == []

    # what is inside

    async def test_the_environment_is_the_specs_and_no_more(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AGENT_SECRET", "hush")
        env = {"DORM_APP": "digits", "EMPTY": "", "EQUALS": "a=b", "WORDS": "two\nlines $HOME"}
        async with harness.opened() as runtime:
            spec = harness.spec("cat", "/proc/self/environ", env=env)
            await runtime.ensure(spec)
            await ended(runtime, spec.key)
            variables = (await output(runtime, spec.key)).decode().rstrip("\0").split("\0")
        inside = {name: value for name, _, value in (variable.partition("=") for variable in variables)}
        assert {name: inside[name] for name in env} == env
        assert {"PATH", "HOME", "DORM_PROGRESS"} <= inside.keys()
        assert "AGENT_SECRET" not in inside
        assert "hush" not in inside.values()

    async def test_the_variables_of_a_running_container_can_be_asked_for(
        self, harness: Harness, runtime: Runtime
    ) -> None:
        spec = harness.shell("exec sleep 600")
        env = {**spec.env, "DORM_OUTPUTS": "/results of/a=b", "LINES": "two\nlines"}
        spec = msgspec.structs.replace(spec, env=env)
        await runtime.ensure(spec)
        found = await runtime.variables(spec.key)
        assert {name: found[name] for name in env} == env
        assert found["DORM_PROGRESS"] == f"{runtime.run_mount(spec.key)}/{PROGRESS_FILE}"
        await runtime.stop(spec.key, 0.0)
        with pytest.raises(KeyError):
            await runtime.variables(spec.key)

    async def test_progress_is_read_from_outside(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell('echo "{\\"step\\": 1}" >> "$DORM_PROGRESS" && echo ready; exec sleep 600')
        await runtime.ensure(spec)
        file = runtime.run_dir(spec.key) / PROGRESS_FILE
        assert file.exists()
        await says(runtime, spec.key, b"ready")
        assert file.read_text() == '{"step": 1}\n'

    async def test_files_are_there_before_it_starts_and_are_its_own(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell('cat "$FILE" && echo mine > "$FILE" && cat "$FILE"')
        where = runtime.run_mount(spec.key)
        files = {"dorm-hosts": "a\nb\n", "dorm-launcher.py": "print(1)\n"}
        spec = msgspec.structs.replace(spec, files=files, env={**spec.env, "FILE": f"{where}/dorm-hosts"})
        await runtime.ensure(spec)
        assert (await ended(runtime, spec.key)).exit_code == 0
        assert await output(runtime, spec.key) == b"a\nb\nmine\n"
        assert (await runtime.ensure(spec)).state == "exited", "it is the same container, and keeps what it wrote"
        assert (runtime.run_dir(spec.key) / "dorm-hosts").read_text() == "mine\n"

    @pytest.mark.parametrize("name", ["../out", "/etc/motd", "", ".hidden", "a/b", PROGRESS_FILE, "a\0", "a\n"])
    async def test_a_file_is_in_the_containers_folder_or_nowhere(
        self, harness: Harness, runtime: Runtime, name: str
    ) -> None:
        spec = msgspec.structs.replace(harness.shell("true"), files={name: "x"})
        with pytest.raises(Refused) as refused:
            await runtime.ensure(spec)
        assert (refused.value.cause, refused.value.code) == ("spec", "container.file.malformed")
        assert await runtime.list() == []

    async def test_checkpoints_and_outputs_are_shared(self, harness: Harness, runtime: Runtime) -> None:
        folder, outputs = harness.checkpoint_root / "app", harness.checkpoint_root / ".dorm-apps/app/outputs"
        folder.mkdir()
        outputs.mkdir(parents=True)
        where = {"checkpoint_dir": str(folder), "outputs_dir": str(outputs)}
        inside, beside = runtime.checkpoint_mount or str(folder), runtime.outputs_mount or str(outputs)
        writer = harness.shell(f"echo 120 > {inside}/step && echo best > {beside}/model", **where)
        await runtime.ensure(writer)
        assert (await ended(runtime, writer.key)).exit_code == 0
        reader = harness.shell(f"cat {inside}/step {beside}/model", **where)
        await runtime.ensure(reader)
        await ended(runtime, reader.key)
        assert await output(runtime, reader.key) == b"120\nbest\n"
        assert (folder / "step").read_text() == "120\n"
        assert (outputs / "model").read_text() == "best\n"

    async def test_python_is_there(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.spec("python3", "-c", "import numpy; print(numpy.ones(3).sum())")
        await runtime.ensure(spec)
        await ended(runtime, spec.key)
        assert await output(runtime, spec.key) == b"3.0\n"

    # commands in a running container

    async def test_a_command_runs_inside(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(POLITE, env={"WORD": "save"})
        await runtime.ensure(spec)
        script = 'echo "$WORD" > "$(dirname "$DORM_PROGRESS")/said"; exit 5'
        assert await runtime.run(spec.key, ("sh", "-c", script), PATIENCE_S) == 5
        assert (runtime.run_dir(spec.key) / "said").read_text() == "save\n"
        assert await runtime.run(spec.key, ("true",), PATIENCE_S) == 0

    async def test_a_slow_command_is_killed(self, harness: Harness, runtime: Runtime, unused_number: str) -> None:
        spec = harness.shell(POLITE)
        await runtime.ensure(spec)
        assert await runtime.run(spec.key, ("sleep", unused_number), 0.2) == 124
        await asyncio.to_thread(psutil.wait_procs, processes(unused_number), timeout=PATIENCE_S)
        assert processes(unused_number) == []
        seen = await look(runtime, spec.key)
        assert seen is not None
        assert seen.state == "running"

    async def test_commands_that_cannot_run(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell("echo ready; exec sleep 600")
        with pytest.raises(KeyError):
            await runtime.run(spec.key, ("true",), PATIENCE_S)
        await runtime.ensure(spec)
        assert await runtime.run(spec.key, ("no-such-command",), PATIENCE_S) == 127
        await runtime.stop(spec.key, 0)
        with pytest.raises(KeyError):
            await runtime.run(spec.key, ("true",), PATIENCE_S)

    # logs

    async def test_logs_of_a_running_and_an_ended_container(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(
            'for i in 1 2 3 4; do echo "line $i"; done; trap "exit 0" TERM; echo ready >&2; '
            "while :; do sleep 0.05; done"
        )
        await runtime.ensure(spec)
        for last_words in (b"ready", b"line 4"):  # Each stream gets into the log in its own time.
            await says(runtime, spec.key, last_words)
        everything = {b"line 1", b"line 2", b"line 3", b"line 4", b"ready"}  # two streams: in any order
        assert set(lines(await output(runtime, spec.key))) == everything
        following = asyncio.create_task(output(runtime, spec.key, follow=True))
        await runtime.stop(spec.key, PATIENCE_S)
        assert set(lines(await following)) == everything
        assert set(lines(await output(runtime, spec.key, follow=True))) == everything

    async def test_the_last_lines_of_a_log(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell("for i in 1 2 3 4 5; do echo $i; done; printf unfinished")
        await runtime.ensure(spec)
        await ended(runtime, spec.key)
        assert await output(runtime, spec.key, tail=3) == b"4\n5\nunfinished"
        assert await output(runtime, spec.key, tail=0) == b""
        assert await output(runtime, spec.key, tail=100) == b"1\n2\n3\n4\n5\nunfinished"

    async def test_following_yields_output_as_it_arrives(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(
            'cd "$(dirname "$DORM_PROGRESS")"; echo one; while ! [ -e go ]; do sleep 0.02; done; echo two'
        )
        await runtime.ensure(spec)
        got = b""
        async with asyncio.timeout(PATIENCE_S):
            async for chunk in runtime.logs(spec.key, follow=True, tail=None):
                got += chunk
                (runtime.run_dir(spec.key) / "go").touch()  # only now may it continue
        assert got == b"one\ntwo\n"

    async def test_logs_are_bytes(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(r"printf '\377\000\200ok\n'; head -c 300000 /dev/zero | tr '\0' x")
        await runtime.ensure(spec)
        await ended(runtime, spec.key)
        assert await output(runtime, spec.key) == b"\xff\x00\x80ok\n" + b"x" * 300000

    async def test_logs_of_an_unknown_container_raise_a_key_error(self, harness: Harness, runtime: Runtime) -> None:
        with pytest.raises(KeyError):
            await output(runtime, Key("stranger", 1, 0))

    # use, removal, hints

    async def test_use_grows(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.spec("python3", "-c", "x = bytearray(50_000_000)\nwhile True: x[::4096] = x[::4096]")
        assert await runtime.use(spec.key) is None
        await runtime.ensure(spec)
        async with asyncio.timeout(PATIENCE_S):
            before = await runtime.use(spec.key)
            assert before is not None
            use = before
            while use.cpu_s < before.cpu_s + 0.2 or use.memory < 50_000_000:
                await asyncio.sleep(0.02)
                now = await runtime.use(spec.key)
                assert now is not None
                assert now.cpu_s >= use.cpu_s
                use = now
        assert use.memory < 200_000_000
        await runtime.stop(spec.key, 0)
        assert await runtime.use(spec.key) is None

    async def test_removal_leaves_nothing(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell('mkdir -p "$HOME/a/b"; echo x > "$HOME/a/b/c"; echo ready; exec sleep 600')
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        with pytest.raises(Conflict):
            await runtime.remove(spec.key)
        assert (await runtime.list())[0].state == "running"
        await runtime.stop(spec.key, 0)
        await runtime.remove(spec.key)
        assert await runtime.list() == []
        assert not runtime.run_dir(spec.key).exists()
        with pytest.raises(KeyError):
            await output(runtime, spec.key)
        await runtime.remove(spec.key)

    async def test_hints_wake_at_the_start_and_at_each_end(self, harness: Harness) -> None:
        async with harness.opened() as runtime:
            hints = runtime.hints()
            async with asyncio.timeout(PATIENCE_S):
                await anext(hints)  # connected
                spec = harness.shell("exit 0")
                await runtime.ensure(spec)
                async for _ in hints:
                    seen = await look(runtime, spec.key)
                    if seen is not None and seen.state == "exited":
                        break
            rest = asyncio.create_task(_drained(hints))
        async with asyncio.timeout(PATIENCE_S):
            await rest  # ends, because the runtime was closed

    async def test_closing_a_runtime_leaves_its_containers_running(self, harness: Harness) -> None:
        spec = harness.shell(POLITE)
        async with harness.opened() as before:
            await before.ensure(spec)
        async with harness.opened() as after:
            assert (await until(after, spec.key, lambda seen: True)).state == "running"

    async def test_the_same_object_can_be_opened_again(
        self, harness: Harness, runtime: Runtime, tmp_path: Path
    ) -> None:
        spec = harness.shell(POLITE)
        await runtime.ensure(spec)
        await runtime.close()
        await runtime.open()
        assert (await runtime.list())[0].state == "running"
        assert (await runtime.ensure(spec)).state == "running"


async def _drained(hints: AsyncIterator[None]) -> None:
    async for _ in hints:
        pass
