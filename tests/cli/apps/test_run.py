"""`dorm run` in a folder with a script, on a cluster of processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import pwd
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import yaml

from events.spec import SpecError
from tests.e2e import forked
from tests.e2e.commands import DORM, done, environment
from tests.e2e.local_up import Up, leaving_nothing, named, up
from tests.e2e.story import until
from tests.errors import raises

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

TRAIN = """\
import os, sys, time
import model
print("trains", model.NAME, "with", sys.argv[1:], "in", os.getcwd(), flush=True)
"""
LOOP = """\
import os, time
print("works as one of", os.environ["DORM_WORLD_SIZE"], flush=True)
time.sleep(600)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    async with leaving_nothing(tmp_path_factory.mktemp("run")) as folder, up(folder) as running_cluster:
        yield running_cluster


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "model.py").write_text("NAME = 'linear'\n")
    (folder / "train.py").write_text(TRAIN)
    (folder / "fail.py").write_text("import sys\nprint('the loss is gone', file=sys.stderr)\nsys.exit(7)\n")
    (folder / "loop.py").write_text(LOOP)
    return folder


async def dorm_in(folder: Path, home: Path, *words: str) -> tuple[int, str, str]:
    code, out, err = await forked.command(words, environment(home), b"", 60.0, folder)
    return code, out.decode(), err.decode()


async def test_a_script_runs_in_its_folder_and_is_followed_to_its_end(cluster: Up, project: Path) -> None:
    command = ("run", "--cpu", "500m", "python3", "train.py", "--lr", "0.1", "-o", "x")
    code, out, err = await dorm_in(project, cluster.home, *command)
    assert code == 0, err
    assert out.startswith("trains linear with ['--lr', '0.1', '-o', 'x'] in /"), out
    assert out.endswith("/work\n")
    assert "train: shipped its folder (4 files, " in err
    assert "train is accepted as train-" in err
    code, out, err = await dorm_in(project, cluster.home, *command)
    assert (code, out[:6]) == (0, "trains"), err
    assert "train-2 is accepted as train-2-" in err
    assert "is shipped" not in err  # Nothing had to be sent.


async def test_without_a_shipped_folder_it_runs_in_the_current_one(cluster: Up, project: Path) -> None:
    command = ("run", "--no-workdir", "--name", "here", "--", "python3", "train.py")
    code, out, err = await dorm_in(project, cluster.home, *command)
    assert (code, out) == (0, f"trains linear with [] in {project}\n"), err


async def test_each_line_of_several_containers_is_printed_with_its_rank(cluster: Up, project: Path) -> None:
    (project / "ranks.py").write_text(
        "import os\nprint('one of', os.environ['DORM_WORLD_SIZE'])\nprint('loss', os.environ['DORM_RANK'], end='')\n"
    )
    command = ("run", "--n-min", "2", "--n-max", "2", "--cpu", "250m", "--", "python3", "ranks.py")
    code, out, err = await dorm_in(project, cluster.home, *command)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["rank 0 | loss 0", "rank 0 | one of 2", "rank 1 | loss 1", "rank 1 | one of 2"]


async def test_it_ends_with_the_exit_code_of_the_script_and_shows_its_last_output(cluster: Up, project: Path) -> None:
    code, out, err = await dorm_in(project, cluster.home, "run", "--", "python3", "fail.py")
    # Both nodes are tried: the first failure may have been the node's.
    assert (code, out) == (7, "the loss is gone\n" * 2), err
    assert err.splitlines()[-1].startswith("error: fail failed: ")
    assert "[app.failed]" in err
    async with cluster.client() as client:
        assert named(await client.state(), "fail").generation == 2


_TWO = """\
import os, pathlib, sys, time
note = pathlib.Path(os.environ["DORM_CHECKPOINT_DIR"]) / ("pid" + os.environ["DORM_GENERATION"])
if os.environ["DORM_RANK"] == "0":
    note.with_name("new").write_text(str(os.getpid()))
    note.with_name("new").replace(note)
    raise ConnectionResetError("rank 1 hung up")
while not note.exists() or os.path.exists("/proc/" + note.read_text()):
    time.sleep(0.02)
print("KeyError: label", flush=True)
sys.exit(3)
"""


async def test_it_ends_with_the_exit_code_of_the_container_that_explains_the_others(cluster: Up, project: Path) -> None:
    (project / "two.py").write_text(_TWO)
    command = ("run", "--n-min", "2", "--n-max", "2", "--cpu", "250m", "--", "python3", "two.py")
    code, _, err = await dorm_in(project, cluster.home, *command)
    assert code == 3, err
    # Both nodes are tried, and both times the reason is the same container.
    found = re.findall(r"two: retrying: slot (\d) on|error: two failed: slot (\d) on", err)
    assert found == [("1", ""), ("", "1")], err
    assert "ended with exit code 3: KeyError: label; it failed on " in err.splitlines()[-1]


async def test_after_a_retry_it_ends_with_the_last_exit_code(cluster: Up, project: Path) -> None:
    (project / "worse.py").write_text("import os, sys\nsys.exit(3 + int(os.environ['DORM_GENERATION']))\n")
    code, _, err = await dorm_in(project, cluster.home, "run", "--retries", "1", "--", "python3", "worse.py")
    assert code == 5, err
    assert "worse: retrying: " in err


async def test_a_missing_folder_fails_at_once_by_name(cluster: Up, project: Path) -> None:
    command = ("run", "--retries", "3", "--folder", "/no/such/folder", "--", "python3", "train.py")
    code, _, err = await dorm_in(project, cluster.home, *command)
    assert code == 125, err
    assert "/no/such/folder" in err.splitlines()[-1]


async def test_a_program_that_is_not_there_is_refused_before_anything_is_sent(cluster: Up, project: Path) -> None:
    code, out, err = await dorm_in(project, cluster.home, "run", "--", "no-such-program", "train.py")
    assert (code, out) == (2, "")
    assert "[run.program.not_found]" in err


async def test_a_mistyped_script_is_refused_and_the_right_one_named(cluster: Up, project: Path) -> None:
    code, out, err = await dorm_in(project, cluster.home, "run", "--", "python3", "-u", "trian.py")
    assert (code, out) == (2, "")
    assert f"there is no trian.py in {project}; did you mean train.py?" in err
    assert "[run.script.not_found]" in err


async def test_a_spec_next_to_an_unshipped_script_is_submitted_with_a_hint(cluster: Up, project: Path) -> None:
    (project / "beside.yaml").write_text(
        "{name: beside, command: [python3, fail.py], demand: {cpu: 250m}, retries: {limit: 0}}"
    )
    code, out, err = await dorm_in(project, cluster.home, "submit", "beside.yaml")
    assert (code, out[:18]) == (0, "beside is accepted"), err
    hint = "beside: fail.py is beside beside.yaml, and nothing brings it to the nodes; `workdir: .` would"
    assert " ".join(err.split()) == hint


async def test_the_spec_that_it_prints_can_be_submitted(cluster: Up, project: Path) -> None:
    options = ("--name", "written", "--n-max", "2", "--env", "LR=0.1", "--retries", "1")
    code, out, err = await dorm_in(project, cluster.home, "run", "--dry-run", *options, "--", "python3", "train.py")
    assert (code, err) == (0, "")
    spec = yaml.safe_load(out)
    assert (spec["n_max"], spec["env"], spec["demand"]) == (2, {"LR": "0.1"}, {"cpu": "1"})
    (project / "train.yaml").write_text(out)
    code, out, err = await dorm_in(project, cluster.home, "submit", "--wait", "train.yaml")
    assert (code, out[:17]) == (0, "written completed"), err


async def test_variables_of_a_file_an_environment_and_settings_need_no_spec_file(cluster: Up, project: Path) -> None:
    (project / ".env").write_text("FROM_FILE=read\n")
    (project / "found.py").write_text(
        "import os, sys\nprint(os.environ['FROM_FILE'], os.environ['LR'], os.environ['VIRTUAL_ENV'] == sys.prefix)\n"
    )
    options = [
        "--env-file",
        ".env",
        "--env",
        "LR=0.1",
        "--set",
        "setup=['true']",
        "--set",
        "weight=2",
        "--max-runtime",
        "1h",
    ]
    code, out, err = await dorm_in(project, cluster.home, "run", *options, "--", "python3", "found.py")
    assert code == 0, err
    assert out.splitlines()[-1] == "read 0.1 True"
    async with cluster.client() as client:
        spec = named(await client.state(), "found").spec
    assert (spec.weight, spec.max_runtime, spec.command) == (2, "1h", ["python3", "found.py"])


async def test_missing_offers_and_invalid_settings_are_refused(cluster: Up, project: Path) -> None:
    for options, error in (
        (("--volume", "datasets:/data"), "[spec.volumes.not_offered]"),
        (("--set", "weigt=2"), "[spec.unknown_field]"),
        (("--set", "weight"), "[usage.set.malformed]"),
        (("--after", "nothing"), "[spec.after.unknown]"),
        (("--requirements", "none.txt"), "[system.enoent]"),
    ):
        code, out, err = await dorm_in(project, cluster.home, "run", *options, "--", "python3", "train.py")
        assert (code > 0, out) == (True, ""), err
        assert err.splitlines()[-1].endswith(error), err


async def test_detached_it_runs_on_and_an_interruption_without_a_terminal_cancels(cluster: Up, project: Path) -> None:
    code, out, _ = await dorm_in(project, cluster.home, "run", "-d", "--cpu", "250m", "--", "python3", "loop.py")
    assert code == 0
    assert out.startswith("loop is accepted as loop-")
    process = await asyncio.create_subprocess_exec(
        *DORM, "run", "--name", "cut", "--cpu", "250m", "--", "python3", "loop.py",
        cwd=project, env=environment(cluster.home), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"works as one of 1\n"
        process.send_signal(signal.SIGINT)
        _, err_bytes = await process.communicate()
    assert process.returncode == 130, err_bytes
    async with cluster.client() as client:
        state = await client.state()
        assert named(state, "cut").ended == "cancelled"
        assert not named(state, "loop").ended
    await done(cluster.home, "cancel", "loop", "--wait")


class Terminal:
    """A program on its own terminal."""

    def __init__(self, master: int, process: Process) -> None:
        self._master = master
        self.process = process
        self._shown = b""

    async def until(self, words: str) -> None:
        """Wait until it has shown these words since the last call."""
        loop = asyncio.get_running_loop()
        more = asyncio.Event()
        loop.add_reader(self._master, more.set)
        try:
            async with asyncio.timeout(30):
                while words.encode() not in self._shown:
                    more.clear()
                    await more.wait()
                    with contextlib.suppress(BlockingIOError):
                        self._shown += os.read(self._master, 65536)
        except (TimeoutError, OSError):
            raise AssertionError(f"it did not show {words!r}: {self._shown.decode(errors='replace')}") from None
        finally:
            loop.remove_reader(self._master)
        self._shown = self._shown.partition(words.encode())[2]

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)


@contextlib.asynccontextmanager
async def on_a_terminal(folder: Path, home: Path, *words: str) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = await asyncio.create_subprocess_exec(
        *DORM, *words, cwd=folder, env=environment(home), stdin=slave, stdout=slave, stderr=slave,
        preexec_fn=own_terminal,
    )  # fmt: skip
    os.close(slave)
    os.set_blocking(master, False)
    try:
        yield Terminal(master, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)


async def test_on_a_terminal_ctrl_c_asks_and_the_output_continues_through_a_resize(cluster: Up, project: Path) -> None:
    run = ("run", "--name", "seen", "--cpu", "250m", "--", "python3", "loop.py")
    async with on_a_terminal(project, cluster.home, *run) as terminal:
        await terminal.until("works as one of 1")
        await done(cluster.home, "update", "seen", "--n-min", "2", "--n-max", "2")
        await terminal.until("seen: resized to 2 containers; it restarts from the beginning, since it has reported no")
        await terminal.until("`dorm edit seen --set resizable=never`")
        await terminal.until("works as one of 2")
        terminal.type(b"\x03")
        await terminal.until("(d/c)")
        terminal.type(b"\n")
        await terminal.until("followed on")
        terminal.type(b"\x03")
        await terminal.until("(d/c)")
        terminal.type(b"d\n")
        await terminal.until("seen keeps running;")
        assert await asyncio.wait_for(terminal.process.wait(), 20) == 0
    async with cluster.client() as client:
        await until(client, lambda s: s.apps[named(s, "seen").id].phase == "running", "it runs on")
        story = await done(cluster.home, "story", "seen")
        assert "restarts from the beginning, since it has reported no checkpoint" in " ".join(story.split())
        explained = " ".join((await done(cluster.home, "explain", "seen", "--brief")).split())
        assert "it restarted from the beginning, since it had reported no checkpoint" in explained
        await done(cluster.home, "edit", "seen", "--set", "resizable=never", "--yes")
        described = " ".join((await done(cluster.home, "describe", "seen")).split())
        assert "resizable never: resizable is never in its spec, so it keeps" in described
    await done(cluster.home, "cancel", "seen")
    async with on_a_terminal(project, cluster.home, "run", "--cpu", "250m", "python3", "loop.py") as terminal:
        await terminal.until("works as one of")
        terminal.type(b"\x03")
        await terminal.until("(d/c)")
        terminal.type(b"c\n")
        await terminal.until("is cancelled")
        assert await asyncio.wait_for(terminal.process.wait(), 30) == 130


async def test_variables_in_a_list_have_their_values_and_what_no_shell_reads_is_said(
    cluster: Up, project: Path
) -> None:
    (project / "write.py").write_text(
        "import os, sys, time\nos.makedirs(sys.argv[1])\nopen(sys.argv[1] + '/result', 'w').write(' '.join(sys.argv[2:]))\n"
        "open(os.environ['DORM_PROGRESS'], 'a').write('{\"step\": %s, \"checkpoint\": %s}\\n' % (sys.argv[3], sys.argv[3]))\n"
        "time.sleep(600)\n"
    )
    (project / "write.yaml").write_text(
        "name: write\nworkdir: .\ndemand: {cpu: 250m}\nenv: {RUN: '$DORM_OUTPUTS/run-$DORM_RANK'}\ngrace: 30s\n"
        "command: [python3, write.py, '${RUN}', $HOME, '$DORM_GENERATION', $$RUN]\n"
        "resume: [python3, write.py, '${RUN}-again', $$LR, $DORM_GENERATION]\n"
        "checkpoint: [cp, $RUN/result, '$DORM_CHECKPOINT_DIR/saved-${DORM_SLOT}']\n"
    )
    code, _, err = await dorm_in(project, cluster.home, "submit", "write.yaml")
    assert code == 0, err
    assert "note: write: command[3]: $HOME stays as it is" in " ".join(err.split())
    async with cluster.client() as client:
        app = named(await client.state(), "write")

        def written(name: str) -> list[str]:
            return [path.read_text() for path in cluster.home.rglob(name) if app.id in str(path)]

        await until(client, lambda s: s.apps[app.id].step == 1, "it has started")
        assert written("run-0/result") == ["$HOME 1 $RUN"]
        await done(cluster.home, "restart", "write")
        await until(client, lambda s: s.apps[app.id].step == 2, "it has resumed")
        assert written("saved-0") == ["$HOME 1 $RUN"]
        assert written("run-0-again/result") == ["$$LR 2"]
        await done(cluster.home, "cancel", "write", "--wait")


async def test_a_variable_that_no_container_has_is_refused(cluster: Up, project: Path) -> None:
    spec = "{name: typo, command: [python3, fail.py, $DORM_OUTPUT], demand: {cpu: 1}}"
    (project / "typo.yaml").write_text(spec)
    for words in (("submit", "typo.yaml"), ("run", "--", "python3", "fail.py", "$DORM_OUTPUT")):
        code, out, err = await dorm_in(project, cluster.home, *words)
        assert (code, out) == (2, "")
        assert "did you mean DORM_OUTPUTS?" in err
        assert "[spec.command.unknown_variable]" in err
    async with cluster.client() as client:
        with raises(SpecError, "spec.command.unknown_variable"):
            await client.submit(yaml.safe_load(spec))


async def test_every_command_of_a_shell_gets_its_python(cluster: Up, project: Path) -> None:
    venv = project.parent / "a venv"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    shell = environment(cluster.home)
    shell["PATH"] = f"{venv / 'bin'}:{shell['PATH']}"
    (project / "which.py").write_text("import os, sys\nprint(sys.prefix, os.environ['VIRTUAL_ENV'])\n")
    (project / "which.sh").write_text("python which.py\n")
    (project / "which.yaml").write_text("{name: filed, workdir: ., command: [python3, which.py], demand: {cpu: 250m}}")

    async def said(*words: str) -> str:
        code, out, err = await forked.command(words, shell, b"", 60.0, project)
        assert code == 0, err
        return out.decode()

    for command in (("python", "which.py"), ("bash", "which.sh"), ("sh", "-c", "python3 which.py"), ("./which.sh",)):
        (project / "which.sh").chmod(0o755)
        if command == ("./which.sh",):
            (project / "which.sh").write_text("#!/bin/sh\npython which.py\n")
        assert await said("run", "--cpu", "250m", "--", *command) == f"{venv} {venv}\n"
    await said("submit", "--wait", "which.yaml")
    assert await said("logs", "filed") == f"{venv} {venv}\n"
    assert f"Python {venv}/bin/python3" in " ".join((await said("describe", "filed")).split())
    await said("sweep", "run", "--wait", "--array", "1", "--name", "swept", "--cpu", "250m", "--", "bash", "which.sh")
    assert await said("logs", "swept-0000") == f"{venv} {venv}\n"


async def test_a_python_that_a_node_does_not_have_fails_by_name(cluster: Up, project: Path) -> None:
    spec = {"name": "gone", "command": ["true"], "demand": {"cpu": 1}, "python": "/no/python", "retries": {"limit": 0}}
    async with cluster.client() as client:
        app = await client.submit(spec)
        state = await until(client, lambda s: bool(s.apps[app.id].ended), "it fails")
    assert "has no Python at /no/python" in state.apps[app.id].end_reason


async def test_variables_of_the_shell_are_passed_by_name_and_others_are_named(cluster: Up, project: Path) -> None:
    (project / "env.py").write_text(
        "import getpass, os\nfrom os import environ\n"
        "print(environ['WANDB_MODE'], environ.get('HF_HOME'), getpass.getuser(), environ['USER'])\n"
    )
    shell = {
        **{name: text for name, text in environment(cluster.home).items() if name != "PYTHONPATH"},
        "WANDB_MODE": "offline",
        "HF_HOME": "/data/hf",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    words = ("run", "--env", "WANDB_MODE", "--", "python3", "env.py")
    code, out, err = await forked.command(words, shell, b"", 60.0, project)
    user = pwd.getpwuid(os.getuid()).pw_name
    assert (code, out.decode()) == (0, f"offline None {user} {user}\n")
    notes = [line for line in err.decode().splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: HF_HOME, CUDA_VISIBLE_DEVICES are set in this shell and not in the app's environment: --env HF_HOME passes it; "
        "--gpu N gives it GPUs"
    ]
    code, _, err = await forked.command(("run", "--env", "NO_SUCH", "--", "true"), shell, b"", 60.0, project)
    assert (code, b"--env: 'NO_SUCH' has no value" in err) == (2, True)
