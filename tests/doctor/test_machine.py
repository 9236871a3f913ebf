"""What the doctor sees on a node's own machine."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from agents import node_lease
from agents.outputs.folders import MARKER, CheckpointFolder
from dorm.doctor.machine_findings import CONTAINERS, NodeHere, judge_master, judge_node
from tests.core.records import Bench, joined

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.core.state import State
    from dorm.doctor.findings import Finding


def here(tmp_path: Path, *, left_s: float | None = 100.0, pid: int | None = None) -> NodeHere:
    root, checkpoints = tmp_path / "node", tmp_path / "checkpoints"
    (root / CONTAINERS).mkdir(parents=True, exist_ok=True)
    if left_s is not None:
        node_lease.write(
            str(root / CONTAINERS / node_lease.FILE), node_lease.after(left_s), os.getpid() if pid is None else pid
        )
    CheckpointFolder(checkpoints).open()
    return NodeHere("a", root, checkpoints)


def cluster(checkpoints: str, ports: tuple[int, int] = (1, 1)) -> State:
    bench = Bench()
    bench.add(joined("a", checkpoints=checkpoints, ports=ports))
    return bench.state


def found(findings: list[Finding], check: str) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in findings if one.check == check]


async def test_a_healthy_node_passes_every_check(tmp_path: Path) -> None:
    node = here(tmp_path)
    looked = await judge_node(node, cluster((node.checkpoints / MARKER).read_text().strip()))
    assert {one.level for one in looked if one.check != "disk"} == {"ok"}
    assert [one.check for one in looked] == ["lease", "processes", "disk", "disk", "mount", "ports"]


async def test_without_a_server(tmp_path: Path) -> None:
    looked = await judge_node(here(tmp_path), None)
    assert [one.check for one in looked] == ["lease", "processes", "disk", "disk", "mount"]


async def test_leases(tmp_path: Path) -> None:
    ((level, text),) = found(await judge_node(here(tmp_path, left_s=-5.0), None), "lease")
    assert (level, "is over" in text) == ("wrong", True)
    ((level, text),) = found(await judge_node(here(tmp_path, pid=0), None), "lease")
    assert (level, text.startswith("no agent runs here")) == ("wrong", True)
    ((level, _),) = found(await judge_node(here(tmp_path / "fresh", left_s=None), None), "lease")
    assert level == "note"


async def test_mounts(tmp_path: Path) -> None:
    node = here(tmp_path)
    ((level, text),) = found(await judge_node(node, cluster("e" * 32)), "mount")
    assert (level, "the cluster's is " + "e" * 32 in text) == ("wrong", True)
    (node.checkpoints / MARKER).unlink()
    ((level, text),) = found(await judge_node(node, None), "mount")
    assert (level, text) == ("wrong", f"{node.checkpoints} has no marker")
    node.checkpoints.rmdir()
    assert [level for level, _ in found(await judge_node(node, None), "folder")] == ["wrong"]


async def test_a_port_in_use_by_another_program_is_reported(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        state = cluster("", (port, port))
        ((level, text),) = found(await judge_node(here(tmp_path), state), "ports")
        assert (level, text) == ("wrong", f"of its ports {port}-{port}, others listen on {port}")


async def test_a_masters_folder(tmp_path: Path) -> None:
    (one,) = await judge_master(tmp_path)
    assert one.check == "disk"
    (gone,) = await judge_master(tmp_path / "gone")
    assert gone.level == "wrong"
