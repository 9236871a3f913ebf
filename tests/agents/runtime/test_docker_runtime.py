"""The Docker runtime on a real engine: the suite of all runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agents.runtime.conformance import RuntimeConformance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agents.runtime.docker.runtime import DockerRuntime
    from agents.runtime.interface import Key, Runtime
    from tests.agents.harness import Harness

pytestmark = pytest.mark.docker


class TestDockerRuntime(RuntimeConformance):
    """The whole suite; tests specific to Docker are in test_docker_*.py."""

    long_line = 12_000
    """Docker's log driver `local` cuts longer ones at 16 KiB, and loses their newlines in 20.10."""

    @pytest.fixture
    def harness(self, docker_harness: Harness) -> Harness:
        return docker_harness

    @pytest.fixture
    def deep(self, docker_node: Callable[..., DockerRuntime]) -> Callable[[Path], Runtime]:
        return lambda root: docker_node(root=root)

    def check_temporary(self, runtime: Runtime, key: Key, found: dict[str, object]) -> None:
        assert found["temporary"] == "/tmp", "its own, in memory"
