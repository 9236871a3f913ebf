"""What the doctor says of a machine without bytes, inodes or processes, or with a folder that is read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agents.runtime import cgroups
from dorm.doctor import findings as f
from dorm.doctor.cluster_findings import Asked, judge_nodes
from events.nats.streams import ClockState
from events.requests import AgentStatus, Delayed, Disk
from tests.core.records import Bench

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
WELL = Disk("/srv", 90 * GIB, 100 * GIB, 900_000, 1_000_000)


@pytest.mark.parametrize(
    ("disk", "wrong"),
    [
        (WELL, []),
        (Disk("/srv", 90 * GIB, 100 * GIB), []),  # of an agent that does not count inodes, or a file system without
        (Disk("/srv", GIB, 100 * GIB, 900_000, 1_000_000), ["disk"]),
        (Disk("/srv", 90 * GIB, 100 * GIB, 10, 1_000_000), ["inodes"]),
        (Disk("/srv", 90 * GIB, 100 * GIB, 300, 400), []),
        (Disk("/srv", 90 * GIB, 100 * GIB, 900_000, 1_000_000, read_only=True), ["folder"]),
        (Disk("/srv", 0, 100 * GIB, 0, 1_000_000, read_only=True), ["disk", "folder", "inodes"]),
    ],
)
def test_a_disk(disk: Disk, wrong: list[str]) -> None:
    found = [one for one in f.disks("a", disk) if one.level == "wrong"]
    assert [one.check for one in found] == wrong
    assert all(one.todo for one in found)


@pytest.mark.parametrize(
    ("free", "most", "level"), [(30_000, 32_768, "ok"), (40, 4096, "wrong"), (30, 100, "ok"), (0, 9, "wrong")]
)
def test_processes(free: int, most: int, level: str) -> None:
    assert f.processes("a", free, most, "the user 1000").level == level


def test_an_agent_says_so_from_afar() -> None:
    status = AgentStatus(
        "a",
        "dorm",
        0,
        True,
        90,
        280.0,
        300.0,
        1.0,
        0,
        "process",
        [Disk("/srv", 0, GIB, 1, 100_000, True)],
        3,
        4096,
        "a limit",
    )
    looked = judge_nodes(Bench(a=1).state, {"a": Asked(status, ClockState(0.0, 0.0))})
    assert sorted(one.check for one in looked if one.level == "wrong") == ["disk", "folder", "inodes", "processes"]


def test_an_agent_says_what_it_can_not_remove() -> None:
    delays = [Delayed("app", 1, 0, "remove", "no answer", 90.0), Delayed("app", 2, 0, "create", "a full disk", 9.0)]
    status = AgentStatus("a", "dorm", 0, True, 90, 280.0, 300.0, 1.0, 0, "docker", delays=delays)
    looked = judge_nodes(Bench(a=1).state, {"a": Asked(status, ClockState(0.0, 0.0))})
    (one,) = (one for one in looked if one.level == "wrong")
    assert one.text == "it has failed to remove a container of app for 90 s: no answer"


def group(path: Path, most: str, current: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "pids.max").write_text(f"{most}\n")
    (path / "pids.current").write_text(f"{current}\n")


def proc(tmp_path: Path, *, mounts: str, membership: str) -> Path:
    """A machine with one process, 7, of a kernel that allows 1000 threads and has 300."""
    made = tmp_path / "proc"
    for folder in ("self", "sys/kernel", "7/task/7"):
        (made / folder).mkdir(parents=True)
    (made / "self" / "mountinfo").write_text(mounts)
    (made / "7" / "cgroup").write_text(membership)
    (made / "7" / "limits").write_text("Limit  Soft  Hard  Units\nMax processes  50  60  processes\n")
    (made / "sys" / "kernel" / "threads-max").write_text("1000\n")
    (made / "loadavg").write_text("0.00 0.01 0.05 1/300 4242\n")
    return made


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    point = tmp_path / "cgroup"
    mounts = f"30 1 0:1 / {point} rw - cgroup2 cgroup2 rw\n"
    found = proc(tmp_path, mounts=mounts, membership="0::/system.slice/dorm-agent.service\n")
    group(point / "system.slice" / "dorm-agent.service", "max", 20)
    group(point / "system.slice", "120", 100)
    left = cgroups.left(7, found)
    assert left is not None
    assert (left.free, left.most, left.of) == (20, 120, f"the control group {point}/system.slice")


def test_the_kernel_has_a_limit_too(tmp_path: Path) -> None:
    left = cgroups.left(8, proc(tmp_path, mounts="", membership=""))
    assert left == cgroups.Left(700, 1000, "the kernel (threads-max)")


def test_groups_of_version_1(tmp_path: Path) -> None:
    point = tmp_path / "pids"
    mounts = f"30 1 0:1 / {point} rw - cgroup cgroup rw,pids\n"
    found = proc(tmp_path, mounts=mounts, membership="8:pids:/docker/x\n0::/\n")
    group(point / "docker" / "x", "64", 60)
    left = cgroups.left(7, found)
    assert left is not None
    assert (left.free, left.most) == (4, 64)


def test_this_machine_can_be_looked_at() -> None:
    import os

    left = cgroups.left(os.getpid())
    assert left is not None
    assert 0 < left.free < left.most
