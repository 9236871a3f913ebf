"""Sums of tensors by process groups of PyTorch, in real processes: through resizes, deaths inside a sum, and groups that fail.

They run where PyTorch is installed: `make test-engines` installs it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dorm import elastic
from dorm.elastic import ledger
from dorm.elastic.contract import Contract
from dorm.elastic.errors import ContractError
from dorm.elastic.statistics import Statistics
from dorm_lab.bench.elastic.workers import Workers
from tests.docs.shown import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-engines`")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = str(Path(__file__).with_name("tensors.py"))
EXPECTED = ledger.expected(1000).digest
START_S = 120.0
"""To import PyTorch takes seconds, and many times that next to other tests."""
SAME = 1e-4
"""Relative to the largest weight: 32-bit sums of other partial sums."""


@contextmanager
def training(folder: Path, *, epochs: int = 12, by: str = "auto", fault: str = "") -> Iterator[Workers]:
    workers = Workers(folder / "job", SCRIPT, str(epochs), "0.01", by, fault)
    try:
        yield workers
        assert workers.epochs() == dict.fromkeys(range(epochs), EXPECTED)
    finally:
        workers.close()


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The weights of a run by one worker."""
    environment = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]), "PATH": ""}
    command = [sys.executable, SCRIPT, "12", "0", "auto", ""]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    weights: list[float] = json.loads(ran.stdout)["weights"]
    return weights


def end_of(workers: Workers, slot: int) -> dict[str, Any]:
    """What a worker printed at its end."""
    lines = workers.output(slot).splitlines()
    assert lines, workers.printed()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def trained(workers: Workers, slots: list[int], alone: list[float]) -> None:
    """The survivors hold the same weights, bit for bit, and those of a rigid run but for rounding."""
    weights = [end_of(workers, slot)["weights"] for slot in slots]
    assert all(one == weights[0] for one in weights)
    assert weights[0] == pytest.approx(alone, rel=0, abs=SAME * max(map(abs, alone)))


def changed(workers: Workers, cause: str) -> dict[str, Any]:
    workers.until(lambda: any(change["cause"] == cause for change in workers.changes()), timeout=START_S)
    return next(change for change in workers.changes() if change["cause"] == cause)


def another_epoch(workers: Workers) -> None:
    before = len(workers.epochs())
    workers.until(lambda: len(workers.epochs()) > before, timeout=START_S)


def test_each_membership_sums_by_its_own_group_from_its_first_step_on(tmp_path: Path, alone: list[float]) -> None:
    with training(tmp_path) as workers:
        workers.announce(0, 1)
        another_epoch(workers)
        workers.announce(0, 1, 2, 3)
        grown = changed(workers, "grow")
        another_epoch(workers)
        workers.announce(0, 1)  # The same two: they get their own group again.
        shrunk = changed(workers, "shrink")
        another_epoch(workers)
        workers.announce(1)
        assert workers.wait(0, 1, 2, 3) == [0, 0, 0, 0]
        trained(workers, [1], alone)
        # The group was there before the first step of each view: no sum went another way.
        assert [fact["sums"] for fact in (changed(workers, "start"), grown, shrunk)] == ["gloo"] * 3
        assert end_of(workers, 1)["travelled"] == ["0-1:gloo", "0-1-2-3:gloo", "0-1:gloo", "1:"]
        assert end_of(workers, 2)["travelled"] == ["0-1-2-3:gloo"]
        assert grown["group_s"] > 0


def test_over_tcp_the_model_is_the_same_up_to_rounding(tmp_path: Path, alone: list[float]) -> None:
    with training(tmp_path, by="tcp") as workers:
        workers.announce(0, 1, 2)
        assert workers.wait(0, 1, 2) == [0, 0, 0]
        trained(workers, [0, 1, 2], alone)
        assert end_of(workers, 0)["travelled"] == ["0-1-2:"]
        assert not any("sums" in fact for fact in workers.changes())


@pytest.mark.parametrize(("victim", "kind"), [(0, "kill"), (2, "kill"), (2, "inside"), (0, "after")])
def test_a_death_during_a_sum_repeats_the_step(tmp_path: Path, alone: list[float], victim: int, kind: str) -> None:
    with training(tmp_path, fault=f"{victim}:15:{kind}") as workers:
        workers.announce(0, 1, 2)
        dead = changed(workers, "death")
        left = sorted({0, 1, 2} - {victim})
        assert workers.wait(*left) == [0, 0]
        assert (dead["step"], dead["repeated"], dead["lost"], dead["sums"]) == (15, True, [victim], "tcp")
        trained(workers, left, alone)
        # The survivors' group is built while they train, and carries later sums.
        names = "-".join(map(str, left))
        assert end_of(workers, left[0])["travelled"] == ["0-1-2:gloo", f"{names}:tcp", f"{names}:gloo"]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_member_that_freezes_in_a_sum_is_removed(tmp_path: Path, alone: list[float], victim: int) -> None:
    with training(tmp_path, fault=f"{victim}:15:stop") as workers:
        workers.announce(0, 1, 2)
        dead = changed(workers, "death")
        left = sorted({0, 1, 2} - {victim})
        # The others end although their first group never does: gloo waits for the frozen member.
        assert workers.wait(*left) == [0, 0]
        assert (dead["step"], dead["lost"], dead["sums"]) == (15, [victim], "tcp")
        trained(workers, left, alone)
        workers.signal(victim, signal.SIGCONT)
        assert workers.wait(victim) == [1]
        assert "LeftBehind" in workers.output(victim)


def test_a_group_that_fails_while_all_members_live_is_replaced_by_tcp(tmp_path: Path, alone: list[float]) -> None:
    with training(tmp_path, fault="1:15:break") as workers:
        workers.announce(0, 1, 2)
        another_epoch(workers)
        another_epoch(workers)
        workers.announce(0, 1)
        changed(workers, "shrink")
        assert workers.wait(0, 1, 2) == [0, 0, 0]
        trained(workers, [0, 1], alone)
        for slot in (0, 1):
            assert end_of(workers, slot)["travelled"] == ["0-1-2:gloo", "0-1-2:tcp", "0-1:gloo"]
            assert "tensors are summed over TCP until the members change" in workers.output(slot)
        assert not any(change["cause"] == "death" for change in workers.changes())


def test_batch_norm_works_with_any_number_of_workers_and_its_statistics_are_theirs_together(tmp_path: Path) -> None:
    """51 samples in batches of 8: the last one has 3, which suffice for one worker.  One worker dies on the way."""
    workers = Workers(tmp_path / "job", str(Path(__file__).with_name("shares.py")), "12")
    try:
        workers.announce(0, 1, 2)
        workers.until(lambda: 1 in workers.epochs(), timeout=START_S)
        workers.signal(2, signal.SIGKILL)
        changed(workers, "death")
        workers.announce(0, 1, 3)
        changed(workers, "grow")
        (workers.shared / "go").touch()
        assert workers.wait(0, 1, 3, timeout=START_S) == [0, 0, 0]
        ends = [end_of(workers, slot) for slot in (0, 1, 3)]
        assert ends[0]["state"] == ends[1]["state"] == ends[2]["state"]
        assert [(end["finite"], end["fewest"] >= 2) for end in ends] == [(True, True)] * 3
        assert all(1 not in end["shares"] for end in ends)
        assert any(0 in end["shares"] for end in ends), "the last batch is too small for all"
        assert workers.epochs() == dict.fromkeys(range(12), ledger.expected(51).digest)
    finally:
        workers.close()


def alone_with(model: Any, *, op: str = "mean", **words: Any) -> None:
    """Train for a step, outside a cluster."""
    x = torch.randn(6, 4)
    with elastic.join(state={"model": model}, contract=Contract()) as job:
        for step in job.steps(len(x), **{"batch": 3, **words}):
            model(x[step.indices]).sum().backward()
            step.allreduce([one.grad for one in model.parameters()], op=op)


def test_batch_norm_that_cannot_be_right_is_refused() -> None:
    layers = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
    alone_with(torch.nn.Sequential(*layers))
    alone_with(torch.nn.Sequential(*layers), op="mean", batch=5)  # The last sample joins the batch before.
    refusals: list[tuple[str, dict[str, Any]]] = [
        ("batch_norm", {"op": "sum"}),
        ("least", {"batch": 1}),
        ("least", {"least": 0}),
        ("least", {"values": lambda chunk, samples: 0}),
    ]
    for code, words in refusals:
        with pytest.raises(ContractError) as refused:
            alone_with(torch.nn.Sequential(*layers), **words)
        assert refused.value.code == f"elastic.contract.{code}"
    with pytest.raises(ContractError) as refused:
        alone_with(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SyncBatchNorm(4)))
    assert refused.value.code == "elastic.contract.sync_batch_norm"
    alone_with(torch.nn.Sequential(*layers).eval(), op="sum")


def test_a_repeated_step_begins_with_the_statistics_that_it_had_begun_with() -> None:
    layer = torch.nn.BatchNorm1d(4)
    statistics = Statistics([layer])
    kept = statistics.kept()
    layer(torch.randn(8, 4))
    assert statistics.changed(kept)
    statistics.restore(kept)
    assert not statistics.changed(kept)
    assert (layer.running_mean.tolist(), int(layer.num_batches_tracked)) == ([0.0] * 4, 0)
