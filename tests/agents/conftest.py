"""Fixtures of the agents' tests."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest

from agents.runtime.docker.runtime import DockerRuntime
from agents.runtime.process.runtime import ProcessRuntime
from tests.agents.harness import Harness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

_numbers = itertools.count(1)


@pytest.fixture
def unused_number() -> str:
    """An argument of `sleep` that no other process of this machine has, so its processes can be found."""
    return f"{100_000 + os.getpid() % 900_000}.{next(_numbers):04d}{os.getpid()}"


@pytest.fixture
async def process_harness(tmp_path: Path) -> AsyncIterator[Harness]:
    """A node of processes."""
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    harness = Harness(
        lambda: ProcessRuntime("node", tmp_path / "node"),
        "",
        checkpoints,
        f"ProcessRuntime('node', Path({str(tmp_path / 'node')!r}))",
    )
    yield harness
    await harness.clean()


@pytest.fixture
def cluster() -> str:
    """A cluster name that no other test on the engine has."""
    return f"test{os.getpid()}x{next(_numbers)}"


@pytest.fixture
def docker_node(docker_host: str, tmp_path: Path, cluster: str) -> Callable[..., DockerRuntime]:
    """`docker_node("a", user=…)` returns an unopened runtime for node a; equal names share one root."""
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()

    def make(node: str = "node", root: Path | None = None, **options: object) -> DockerRuntime:
        defaults = {"url": docker_host, "cluster": cluster, "checkpoint_root": checkpoints}
        return DockerRuntime(node, root or tmp_path / node, **{**defaults, **options})  # type: ignore[arg-type]

    return make


@pytest.fixture
async def docker_harness(
    docker_node: Callable[..., DockerRuntime], docker_image: str, docker_host: str, cluster: str, tmp_path: Path
) -> AsyncIterator[Harness]:
    """A node of Docker containers."""
    root = str(tmp_path / "node")
    expression = f"DockerRuntime('node', Path({root!r}), url={docker_host!r}, cluster={cluster!r})"
    harness = Harness(docker_node, docker_image, tmp_path / "checkpoints", expression)
    yield harness
    await harness.clean()
