"""Commands in Docker containers: the suite of all runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agents.runtime.sessions.conformance import ExecutionConformance

if TYPE_CHECKING:
    from tests.agents.harness import Harness

pytestmark = pytest.mark.docker


class TestDockerExecution(ExecutionConformance):
    """All of it."""

    @pytest.fixture
    def harness(self, docker_harness: Harness) -> Harness:
        return docker_harness
