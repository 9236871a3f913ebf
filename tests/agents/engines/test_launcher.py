"""The launcher of MPI jobs with real processes.  A shell script stands in for mpirun: it calls the agent as mpirun does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents import engine_launcher, engines
from tests.apps.partition import PATIENCE_S
from tests.lab.machines.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow


class Job:
    """Containers of one generation, each with its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def path(self, rank: int) -> Path:
        return self.folder / str(rank)

    def start(self, rank: int, size: int, script: str = "", *, own: str = "", generation: int = 1) -> None:
        """Start one container; the first one runs `script` in place of mpirun, which finds its launcher as $L, another one its
        `own` if it has any."""
        folder = self.path(rank)
        folder.mkdir()
        (folder / engines.LAUNCHER).write_text(Path(engine_launcher.__file__).read_text())
        command = [sys.executable, str(folder / engines.LAUNCHER)]
        if rank == 0:
            command += ["head", "127.0.0.1", str(self.port), str(size), "sh", "-c", script]
        else:
            command += ["worker", "127.0.0.1", str(self.port), str(rank), *(["sh", "-c", own] if own else [])]
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DORM_APP": "app",
            "DORM_GENERATION": str(generation),
            "L": f"{sys.executable} {folder / engines.LAUNCHER}",
        }
        with (folder / "log").open("wb") as log:
            self.processes[rank] = subprocess.Popen(
                command, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    def exit_codes(self) -> list[int]:
        return [self.processes[rank].wait(PATIENCE_S) for rank in sorted(self.processes)]

    def said(self, rank: int) -> str:
        return (self.path(rank) / "log").read_text()

    def until(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < deadline, f"never: {what}; {[self.said(rank) for rank in self.processes]}"
            time.sleep(0.01)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for process in made.processes.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def agent(rank: int, command: str) -> str:
    return f"$L agent {engine_launcher.HOST_PREFIX}{rank} '{command}'"


def test_a_command_runs_in_the_container_of_its_rank_and_its_exit_code_comes_back(job: Job) -> None:
    for rank in (1, 2):
        job.start(rank, 3)
    job.start(0, 3, f"{agent(2, 'pwd > here; exit 7')}; echo $? > code; {agent(0, 'pwd > here')}; exit 5")
    assert job.exit_codes() == [5, 5, 5]
    assert (job.path(0) / "code").read_text() == "7\n"
    assert (job.path(2) / "here").read_text() == f"{job.path(2)}\n"
    assert (job.path(0) / "here").read_text() == f"{job.path(0)}\n"
    assert not (job.path(1) / "here").exists()


def test_a_process_of_the_job_runs_the_words_of_its_own_container(job: Job) -> None:
    job.start(1, 2)
    (job.path(1) / engine_launcher.COMMAND).write_text('["sh", "-c", "echo $1 > said", "sh", "one"]')
    job.start(0, 2, f"{agent(1, 'python3 $DORM_LAUNCH_FOLDER/dorm-launcher.py rank echo zero')}")
    assert job.exit_codes() == [0, 0]
    assert (job.path(1) / "said").read_text() == "one\n"


def test_a_stranger_can_run_nothing(job: Job) -> None:
    job.start(0, 2, "until [ -e go ]; do sleep 0.05; done")
    job.start(1, 2, generation=1)
    listening = f"0100007F:{job.port:04X} 00000000:0000 0A"
    job.until(lambda: listening in Path("/proc/net/tcp").read_text(), "the head listens")
    for said in (
        {"token": "", "rank": 1, "command": "touch broken"},
        {"token": "ü" * 32, "rank": 1, "command": "touch broken"},
        {"token": "x" * 32, "rank": 1, "command": "touch broken"},
        {"app": "app", "generation": "0", "rank": 1},
        {"app": "app", "generation": "1", "rank": 9},
        ["rank"],
    ):
        with socket.create_connection(("127.0.0.1", job.port), timeout=PATIENCE_S) as stranger:
            stranger.sendall(json.dumps(said).encode() + b"\n")
            assert stranger.recv(100) == b"", "the head hangs up"
    (job.path(0) / "go").touch()
    assert job.exit_codes() == [0, 0]
    assert not (job.path(1) / "broken").exists()


def test_a_dead_container_ends_the_job(job: Job) -> None:
    for rank in (1, 2):
        job.start(rank, 3)
    job.start(0, 3, f"{agent(1, 'touch runs; exec sleep 600')}")
    job.until((job.path(1) / "runs").exists, "the daemon runs")
    job.processes[2].kill()
    assert job.exit_codes() == [1, 1, -signal.SIGKILL]
    assert "the container of rank 2 is gone" in job.said(0)


def test_a_dead_head_ends_the_others(job: Job) -> None:
    job.start(1, 2)
    job.start(0, 2, f"{agent(1, 'touch runs; exec sleep 600')}")
    job.until((job.path(1) / "runs").exists, "the daemon runs")
    job.processes[0].kill()
    assert job.exit_codes() == [-signal.SIGKILL, 1]
    assert "the first container is gone" in job.said(1)


def test_sigterm_reaches_the_apps_processes_which_save_and_end_the_job(job: Job) -> None:
    """Each container is asked by itself, and what runs as mpirun is not."""
    rank = 'exec $L rank sh -c "trap \\"touch saved; exit 143\\" TERM; touch runs; while :; do sleep 0.05; done"'
    job.start(1, 2)
    job.start(0, 2, f"{agent(1, rank)}; touch after; exit 9")
    job.until((job.path(1) / "runs").exists, "the rank runs")
    for junk in ("dorm-pid.", "dorm-pid.x.y", "dorm-pid.1", f"dorm-pid.{os.getpid()}.1"):
        (job.path(1) / junk).touch()
    for process in job.processes.values():
        os.killpg(process.pid, signal.SIGTERM)
    assert job.exit_codes() == [9, 9]
    assert (job.path(1) / "saved").exists()
    assert (job.path(0) / "after").exists()


def test_a_server_that_never_ends_ends_with_the_head(job: Job) -> None:
    job.start(1, 3, own="touch serves; exec sleep 600")
    job.start(2, 3, own="exit 0")
    job.start(0, 3, "until [ -e ../1/serves ]; do sleep 0.05; done; exit 0")
    assert job.exit_codes() == [0, 0, 0]


def test_a_server_that_fails_ends_all_with_its_exit_code(job: Job) -> None:
    """Such as 98, for a port that is taken."""
    job.start(1, 3, own="exit 98")
    job.start(2, 3, own="exec sleep 600")
    job.start(0, 3, "exec sleep 600")
    assert job.exit_codes() == [98, 98, 98]


def test_servers_run_until_the_head_has_saved(job: Job) -> None:
    job.start(1, 2, own="trap 'touch asked; exit 0' TERM; touch serves; while :; do sleep 0.05; done")
    save = "trap 'sleep 0.5; ls ../1 > seen; exit 143' TERM; touch runs; while :; do sleep 0.05; done"
    job.start(0, 2, f'exec $L rank sh -c "{save}"')
    job.until((job.path(0) / "runs").exists, "the head runs")
    job.until((job.path(1) / "serves").exists, "the server runs")
    for process in job.processes.values():
        os.killpg(process.pid, signal.SIGTERM)
    assert job.exit_codes() == [143, 143]
    assert "asked" not in (job.path(0) / "seen").read_text().split()
    assert (job.path(1) / "asked").exists(), "it is asked once the head has ended"


def test_a_job_that_is_stopped_before_all_have_joined_stops_at_once(job: Job) -> None:
    job.start(0, 3, "touch started")
    job.start(1, 3)
    listening = f"0100007F:{job.port:04X} 00000000:0000 0A"
    job.until(lambda: listening in Path("/proc/net/tcp").read_text(), "the head listens")
    for process in job.processes.values():
        process.terminate()
    head, _ = job.exit_codes()
    assert head == engine_launcher.STOPPED
    assert not (job.path(0) / "started").exists()


def test_a_taken_port_ends_with_its_own_exit_code(job: Job) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", job.port))
        other.listen()
        job.start(0, 2)
        assert job.exit_codes() == [engine_launcher.PORT_TAKEN]
