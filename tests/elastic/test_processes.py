"""Real members: processes that train while others join, leave, die and freeze."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dorm.elastic import ledger
from tests.docs.shown import REPOSITORY
from tests.elastic.forked_workers import ForkedWorkers
from tests.lab.machines.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm_lab.bench.elastic.workers import Workers

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).with_name("logistic.py"))
EXPECTED = ledger.expected(1000).digest


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    workers = ForkedWorkers(tmp_path, SCRIPT, "12", "0.01")
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def alone() -> str:
    """What the script prints outside a cluster: the weights of a rigid run.

    It has the members' environment, since variables such as `OPENBLAS_CORETYPE` choose how products are rounded.
    """
    ran = subprocess.run(
        [sys.executable, SCRIPT, "12", "0"],
        env={name: value for name, value in os.environ.items() if not name.startswith("DORM_")}
        | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


def reached(workers: Workers, epoch: int) -> None:
    workers.until(lambda: epoch in workers.epochs())


def changed(workers: Workers, cause: str, count: int = 1) -> None:
    workers.until(lambda: sum(change["cause"] == cause for change in workers.changes()) >= count)


def test_members_join_and_leave_and_the_model_is_that_of_a_rigid_run(workers: Workers, alone: str) -> None:
    workers.announce(0, 1)
    reached(workers, 0)
    workers.announce(0, 1, 2, 3)
    changed(workers, "grow")
    workers.announce(1, 3)
    changed(workers, "shrink")
    assert workers.wait(0, 1, 2, 3) == [0, 0, 0, 0]
    assert [workers.output(slot) for slot in (1, 3)] == [alone, alone]
    assert [workers.output(slot).split()[0] for slot in (0, 2)] == ["left", "left"]
    assert workers.epochs() == dict.fromkeys(range(12), EXPECTED)
    grown = next(change for change in workers.changes() if change["cause"] == "grow")
    assert grown["members"] == [0, 1, 2, 3]
    assert grown["bytes_moved"] == 2 * 20 * 8  # the weights, for two newcomers


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param([2], marks=pytest.mark.soak),
        pytest.param([0], marks=pytest.mark.soak),
        pytest.param([0, 1], marks=pytest.mark.soak),
        [1, 2],
    ],
)
def test_members_that_are_killed_are_removed_and_nothing_is_lost(
    workers: Workers, alone: str, victims: list[int]
) -> None:
    workers.announce(0, 1, 2, 3)
    reached(workers, 1)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # At once: one that lived a little longer could claim what follows.
        for slot in victims:
            workers.signal(slot, number)
    left = sorted({0, 1, 2, 3} - set(victims))
    assert workers.wait(*left) == [0] * len(left)
    assert {workers.output(slot) for slot in left} == {alone}
    assert workers.epochs() == dict.fromkeys(range(12), EXPECTED)
    assert [change["members"] for change in workers.changes() if change["cause"] == "death"][-1] == left


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_frozen_member_is_removed_and_ends_when_it_wakes(workers: Workers, alone: str, victim: int) -> None:
    workers.announce(0, 1)
    reached(workers, 1)
    workers.signal(victim, signal.SIGSTOP)
    changed(workers, "death")
    workers.signal(victim, signal.SIGCONT)
    other = 1 - victim
    assert workers.wait(other, victim) == [0, 1]
    assert workers.output(other) == alone
    assert "LeftBehind" in workers.output(victim)
    assert workers.epochs() == dict.fromkeys(range(12), EXPECTED)


def test_sigterm_saves_and_the_next_generation_reaches_the_same_model(tmp_path: Path, alone: str) -> None:
    workers = ForkedWorkers(tmp_path, SCRIPT, "12", "0.01")
    try:
        workers.announce(0, 1, 2)
        reached(workers, 3)
        workers.signal(1, signal.SIGTERM)
        assert workers.wait(0, 1, 2) == [143, 143, 143]
        assert workers.output(0).startswith("stopped")
        saved = [fact["checkpoint"] for fact in workers.facts() if "checkpoint" in fact]
        assert len(saved) == 1
        first = workers.epochs()
        for slot in (0, 1, 2):
            del workers.processes[slot]
            (workers.of(slot) / "output").unlink()
        workers.generation, workers.membership = 2, 0
        workers.announce(0, 1)
        assert workers.wait(0, 1) == [0, 0]
        assert workers.output(0) == alone
        steps = [fact["step"] for fact in workers.facts() if fact.get("cause") == "start"]
        assert steps == [0, saved[0]]
        assert {**first, **workers.epochs()} == dict.fromkeys(range(12), EXPECTED)
    finally:
        workers.close()


def test_a_newcomer_that_is_asked_to_stop_while_it_waits_ends_and_harms_nothing(workers: Workers, alone: str) -> None:
    workers.announce(0)
    reached(workers, 0)
    workers.signal(0, signal.SIGSTOP)
    workers.announce(0, 1)
    _until_it_listens(workers.port(1))
    workers.signal(1, signal.SIGTERM)
    assert workers.processes[1].wait(30.0) == 143
    workers.signal(0, signal.SIGCONT)
    workers.announce(0)
    assert workers.wait(0) == [0]
    assert workers.output(0) == alone
    assert workers.epochs() == dict.fromkeys(range(12), EXPECTED)


def test_a_worker_that_is_asked_to_stop_before_the_others_are_there_ends(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    waiting = _with_peers(0, ports, tmp_path)
    try:
        _until_it_listens(ports[0])
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(30.0) == 143
    finally:
        waiting.kill()


def test_strangers_at_the_port_change_nothing(workers: Workers, alone: str) -> None:
    workers.announce(0, 1)
    reached(workers, 0)
    for slot in (0, 1):
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"DRM1\xff\xff\xff\xff", b"DRM1\0\0\0\2{}", FORGED):
            with socket.create_connection(("127.0.0.1", workers.port(slot)), timeout=5) as stranger:
                stranger.sendall(words)
    assert workers.wait(0, 1) == [0, 0]
    assert workers.output(0) == alone


def _frame(text: bytes) -> bytes:
    return b"DRM1" + len(text).to_bytes(4, "big") + text


FORGED = _frame(b'{"group":"test/1","slot":7,"to":1,"challenge":"00","arrays":[]}') + _frame(
    b'{"proof":"00","arrays":[]}'
)
"""A caller who knows the names, but not the key in the shared folder."""


def test_a_taken_port_ends_with_the_code_that_the_contract_gives_it(workers: Workers) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", workers.port(0)))
        other.listen()
        workers.announce(0)
        assert workers.wait(0) == [98]


def test_all_members_are_replaced_at_once(workers: Workers, alone: str) -> None:
    workers.announce(0, 1)
    reached(workers, 0)
    workers.announce(2, 3)
    changed(workers, "move")
    assert workers.wait(0, 1, 2, 3) == [0, 0, 0, 0]
    assert [workers.output(slot) for slot in (2, 3)] == [alone, alone]
    assert workers.epochs() == dict.fromkeys(range(12), EXPECTED)


def test_workers_without_announcements_find_each_other_whichever_starts_first(tmp_path: Path, alone: str) -> None:
    """Of two workers the first one dials, and nothing announces that the other listens by now."""
    (tmp_path / "go").touch()
    ports = [free_port(), free_port()]
    started = []
    try:
        for rank in (0, 1):
            started.append(_with_peers(rank, ports, tmp_path))
            _until_it_listens(ports[rank])
        assert [process.communicate(timeout=60.0)[0] for process in started] == [alone, alone]
    finally:
        for process in started:
            process.kill()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels that are chosen here are of x86-64")
@pytest.mark.parametrize("kernels", ["Haswell", "Prescott"])
def test_members_report_different_rounding(tmp_path: Path, kernels: str) -> None:
    (tmp_path / "go").touch()
    ports = [free_port(), free_port()]
    own = {0: "Haswell", 1: kernels}
    started = [_with_peers(rank, ports, tmp_path, OPENBLAS_CORETYPE=own[rank]) for rank in (0, 1)]
    try:
        said = [process.communicate(timeout=60.0)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    expected = 0 if kernels == "Haswell" else 1
    assert [text.count("rounds products otherwise") for text in said] == [expected] * 2, said


def _with_peers(rank: int, ports: list[int], shared: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": str(REPOSITORY),
        "DORM_APP": "test",
        "DORM_RANK": str(rank),
        "DORM_PEERS": ",".join(f"127.0.0.1:{port}" for port in ports),
        "DORM_CHECKPOINT_DIR": str(shared),
    }
    return subprocess.Popen(
        [sys.executable, "-P", SCRIPT, "12", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _until_it_listens(port: int) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.02)
    pytest.fail(f"nothing listens on {port}")


def test_workers_without_samples_of_their_own_change_no_sum_and_report_no_nan(tmp_path: Path) -> None:
    """51 samples in batches of 4, of which six workers need 2 each: two take part, and one in the last step of an epoch."""
    script = str(Path(__file__).with_name("small_batches.py"))
    alone = subprocess.run(
        [sys.executable, script, "3"],
        env={name: value for name, value in os.environ.items() if not name.startswith("DORM_")}
        | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    workers = ForkedWorkers(tmp_path, script, "3")
    try:
        workers.announce(0, 1, 2, 3, 4, 5)
        assert workers.wait(*range(6)) == [0] * 6
        outputs = [workers.output(slot).splitlines() for slot in range(6)]
        assert [lines[0] for lines in outputs] == [alone[0]] * 6, "the sums have the same bits"
        assert [lines[1] for lines in outputs] == [alone[1]] * 6, "the members that take part are counted"
        assert [lines[2] for lines in outputs] == ["fewest 2"] * 6
        assert workers.epochs() == dict.fromkeys(range(3), ledger.expected(51).digest)
    finally:
        workers.close()
