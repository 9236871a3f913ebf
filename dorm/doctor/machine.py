"""Checks this machine, if it has a node or a master; needs no server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from agents import lease
from agents.outputs.folders import CheckpointFolder
from agents.runtime import cgroups
from agents.status import disk_of
from dorm.doctor import findings as f
from events.kinds import NO_FOLDER
from events.runtimes import RUNTIMES, runtime_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dorm.core.state import State
    from dorm.doctor.findings import Finding

_PATIENCE_S = 5.0
"""A hanging file server must not block the diagnosis."""
_MOST_PORTS = 5
CONTAINERS = "containers"
"""The runtime's folder below a node's."""


class NodeHere(msgspec.Struct, frozen=True):
    """A node on this machine."""

    name: str
    root: Path
    """Private folder of the node."""
    checkpoints: Path


async def judge_node(here: NodeHere, state: State | None) -> list[Finding]:
    """Judge a node on its own machine.  `state` is the cluster's, None if no server answers."""
    findings = [*_lease(here), *await asyncio.to_thread(lambda: list(_processes(here)))]
    for path in (here.root, here.checkpoints):
        findings += await _within_time(path, here.name, _disk)
    expected = state.checkpoints if state is not None else ""
    findings += await _within_time(here.checkpoints, here.name, lambda path, name: _mount(path, name, expected))
    if state is not None:
        findings += await asyncio.to_thread(lambda: list(_ports(here.name, state)))
        findings += await _engine(here.name, state)
    return findings


async def judge_master(folder: Path) -> list[Finding]:
    """Judge a master's folder, which holds its key, on its own machine."""
    return await _within_time(folder, "master", _disk)


async def _within_time(path: Path, about: str, look: Callable[[Path, str], Iterable[Finding]]) -> list[Finding]:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await asyncio.to_thread(lambda: list(look(path, about)))
    except TimeoutError:
        text = f"{path} did not answer within {_PATIENCE_S:g} s"
        return [f.wrong("mount", about, text, "look at the file server, and mount the folder again")]


def _lease(here: NodeHere) -> Iterator[Finding]:
    file = str(here.root / CONTAINERS / lease.FILE)
    left = lease.left(file)
    if left is None:
        yield f.note("lease", here.name, f"no agent has run here yet (there is no {file})")
    elif not lease.looked_after(file):
        todo = f"start `dorm agent --name {here.name}`" + (" before its lease ends" if left > 0 else "")
        over = f"ends in {left:.0f} s" if left > 0 else "is over, so nothing runs here"
        yield f.wrong("lease", here.name, f"no agent runs here, and the node's lease {over}", todo)
    elif left <= 0:
        todo = "see whether this machine reaches the NATS servers; the agent's log says what it waits for"
        yield f.wrong("lease", here.name, "the agent runs, and the node's lease is over", todo)
    else:
        yield f.ok("lease", here.name, f"the agent runs, and the node's lease lasts {left:.0f} s")


def _processes(here: NodeHere) -> Iterator[Finding]:
    """Judge how many processes the agent may still start, if one runs here."""
    agent = lease.holder(str(here.root / CONTAINERS / lease.FILE))
    left = cgroups.left(agent) if agent else None
    if left is not None:
        yield f.processes(here.name, max(0, left.free), left.most, left.of)


def _disk(path: Path, about: str) -> Iterator[Finding]:
    try:
        used = disk_of(path)
    except OSError as error:
        yield f.wrong("folder", about, f"{path}: {error.strerror}", "make the folder, or mount it")
        return
    if not used.read_only and not os.access(path, os.W_OK):
        todo = "run the doctor as the agent's user"
        yield f.unknown("folder", about, f"{path} is not writable for this user", todo)
        return
    yield from f.disks(about, used)


def _mount(path: Path, about: str, expected: str) -> Iterator[Finding]:
    yield _judge_mount(path, about, expected)


def _judge_mount(path: Path, about: str, expected: str) -> Finding:
    """Judge the folder of checkpoints by its marker: a missing mount looks like an empty folder."""
    try:
        mounted = CheckpointFolder(path).look()
    except OSError as error:
        return f.wrong("mount", about, f"{path}: {error.strerror}", "mount the shared folder of checkpoints again")
    if mounted == NO_FOLDER:
        return f.wrong("mount", about, f"{path} has no marker", "mount the shared folder of checkpoints there")
    if expected and mounted != expected:
        text = f"{path} is the folder {mounted}, and the cluster's is {expected}"
        todo = f"mount the shared folder there, or, if this is the right one, `dorm policy set checkpoints={mounted}`"
        return f.wrong("mount", about, text, todo)
    return f.ok("mount", about, f"{path} is the cluster's folder of checkpoints")


def _ports(name: str, state: State) -> Iterator[Finding]:
    node = state.nodes.get(name)
    if node is None:
        return
    low, high = node.ports
    given = set(_given(state, name))
    try:
        every = psutil.net_connections("inet")
    except psutil.Error:
        yield f.unknown("ports", name, "this user may not see who listens", "run the doctor as root")
        return
    listening = {
        connection.laddr[1] for connection in every if connection.laddr and connection.status == psutil.CONN_LISTEN
    }
    strange = sorted(port for port in listening if low <= port <= high and port not in given)
    if strange:
        some = ", ".join(map(str, strange[:_MOST_PORTS])) + (" …" if len(strange) > _MOST_PORTS else "")
        text = f"of its ports {low}-{high}, others listen on {some}"
        yield f.wrong("ports", name, text, "end these programs (`ss -ltnp`), or give the agent other --ports")
    else:
        yield f.ok("ports", name, f"nobody else listens on its ports {low}-{high}")


def _given(state: State, name: str) -> Iterator[int]:
    """Yield the ports that apps have, or may still have, on a node."""
    for app in state.apps.values():
        for generation in app.generations.values():
            for container in generation.all_containers():
                if container.node == name:
                    yield container.port
                    yield generation.master_port


async def _engine(name: str, state: State) -> list[Finding]:
    node = state.nodes.get(name)
    kind = RUNTIMES.get(runtime_name(node.runtime)) if node is not None else None
    if kind is None or not kind.engine:
        return []
    from dorm.local.runtimes import EngineError, choose_runtime

    try:
        async with asyncio.timeout(_PATIENCE_S):
            choice = await choose_runtime(kind.name, os.environ.get("DOCKER_HOST"))
    except (EngineError, TimeoutError) as error:
        why = str(error) or f"no answer within {_PATIENCE_S:g} s"
        return [
            f.wrong(
                "engine",
                name,
                f"{kind.engine} does not answer here: {why}",
                f"look at it: `systemctl status {kind.unit.removesuffix('.service')}`",
            )
        ]
    return [f.ok("engine", name, f"{choice.note} answers here")]
