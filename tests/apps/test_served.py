"""Parameter servers as processes of this machine, without a cluster."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.apps.partition import Partition

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
STOPPED = 143
SAME = 1e-9
OPTIONS = ("--steps", "30", "--report-every", "1")


def served(
    folder: Path, *options: str, servers: int, workers: int, generation: int = 1, without: frozenset[int] = frozenset()
) -> Partition:
    """Start a partition whose first containers are workers, without some of them."""
    size = servers + workers
    made = Partition(folder, "logistic_ps", *options, world_size=size, generation=generation, start=False)
    addresses = [f"127.0.0.1:{port}" for port in made.ports]
    for rank in range(size):
        role, number = ("worker", rank) if rank < workers else ("server", rank - workers)
        if rank not in without:
            environment = {
                "DMLC_ROLE": role,
                f"DMLC_{role.upper()}_ID": str(number),
                "DMLC_NUM_SERVER": str(servers),
                "DMLC_NUM_WORKER": str(workers),
                "DORM_SERVERS": ",".join(addresses[workers:]),
            }
            made.start(rank, environment=environment)
    return made


@pytest.mark.soak
def test_any_number_of_servers_and_workers_gives_the_losses_of_the_ring(tmp_path: Path) -> None:
    with Partition(tmp_path / "ring", "logistic", *OPTIONS) as ring:
        assert ring.exit_codes() == [0]
    for servers, workers in ((1, 1), (1, 3), (3, 2)):
        with served(tmp_path / f"{servers}-{workers}", *OPTIONS, servers=servers, workers=workers) as partition:
            assert partition.exit_codes() == [0] * (servers + workers)
            assert partition.losses() == pytest.approx(ring.losses(), rel=SAME, abs=0)
            assert partition.result() == pytest.approx(ring.result(), rel=SAME, abs=0)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(0, id="worker 0"),
        pytest.param(1, id="worker 1", marks=pytest.mark.soak),
        pytest.param(2, id="the server"),
    ],
)
def test_after_a_request_to_any_container_all_stop_after_the_same_step_and_another_size_continues(
    tmp_path: Path, asked: int
) -> None:
    slow = (*OPTIONS, "--pace", "0.004")
    with served(tmp_path, *slow, servers=1, workers=2) as first:
        first.until_step(3)
        first.signal(asked, signal.SIGTERM)
        assert first.exit_codes() == [STOPPED] * 3
        reached = max(first.losses())
        assert first.saved_steps()[-1] == reached
    with served(tmp_path, *OPTIONS, "--resume", servers=2, workers=1, generation=2) as second:
        assert second.exit_codes() == [0] * 3
        assert min(second.losses()) == reached + 1
    with Partition(tmp_path / "ring", "logistic", *OPTIONS) as ring:
        assert ring.exit_codes() == [0]
    assert {**first.losses(), **second.losses()} == pytest.approx(ring.losses(), rel=SAME, abs=0)


@pytest.mark.parametrize("dead", [1, 2], ids=["a worker", "a server"])
def test_a_dead_container_fails_the_others(tmp_path: Path, dead: int) -> None:
    with served(tmp_path, *OPTIONS, "--pace", "0.02", servers=2, workers=2) as partition:
        partition.until_step(3)
        partition.workers[dead].kill()
        codes = partition.exit_codes()
        assert [code for rank, code in enumerate(codes) if rank != dead] == [1, 1, 1]
        assert "lost" in partition.stderr(0)


def test_a_server_that_never_arrives_fails_the_workers(tmp_path: Path) -> None:
    with served(
        tmp_path, *OPTIONS, "--connect-timeout", "0.5", servers=1, workers=2, without=frozenset({2})
    ) as partition:
        assert partition.exit_codes() == [1, 1]
        assert "could not reach server 0" in partition.stderr(0)


def test_without_a_role_it_names_the_engine_that_it_needs(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic_ps") as partition:
        assert partition.exit_codes() == [2]
        assert "engine: ps" in partition.stderr()
