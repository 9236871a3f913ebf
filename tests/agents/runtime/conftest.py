"""Fixtures of the runtimes' tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agents.runtime.docker.engine import Engine
from agents.runtime.docker.runtime import DockerRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.agents.harness import Harness


@pytest.fixture
async def runtime(docker_harness: Harness) -> AsyncIterator[DockerRuntime]:
    """The node of Docker containers, open.  Tests of another runtime define their own fixture of this name."""
    async with docker_harness.opened() as runtime:
        assert isinstance(runtime, DockerRuntime)
        yield runtime


@pytest.fixture
async def engine(docker_host: str) -> AsyncIterator[Engine]:
    """Another client of the same engine, for checks and actions that the runtime does not offer."""
    engine = Engine(docker_host)
    await engine.open()
    yield engine
    await engine.close()
