"""A seed is one history: the same records and steps at the same moments, whatever else differs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest

from agents.runtime.long_work import LongWork
from tests.simulation.history import History
from tests.simulation.world.loop import Loop

SEEDS = [4, 15, 36]
_PRINT = f"from tests.simulation.history import History; print(*[History(seed).run().digest for seed in {SEEDS}])"


def in_another_process(hash_seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", _PRINT], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    return done.stdout.split()


@pytest.mark.soak
def test_equal_seeds_give_equal_histories_in_every_process() -> None:
    here = [History(seed).run().digest for seed in SEEDS]
    assert len(set(here)) == len(SEEDS)
    assert [History(seed).run().digest for seed in SEEDS] == here
    assert in_another_process("1") == here
    assert in_another_process("2") == here


def test_long_work_of_agents_is_part_of_a_history() -> None:
    """A thread of its own would end whenever the machine has time for it."""
    loop, threads = Loop(), set[int]()  # type: ignore[abstract]  # What is missing is what it does not simulate.
    with contextlib.closing(loop):
        loop.run_until_complete(LongWork("removing").run("ann", lambda: threads.add(threading.get_ident())))
    assert threads == {threading.get_ident()}


def test_a_history_without_its_faults_begins_the_same() -> None:
    with_faults, without = History(4), History(4, only=())
    with_faults.run()
    without.run()
    first = min(fault.at for fault in with_faults.faults)
    before = [line for line in with_faults.world.story() if float(line.split()[0]) < first]
    assert len(before) > 3
    assert without.world.story()[: len(before)] == before
