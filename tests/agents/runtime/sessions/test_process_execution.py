"""Commands in containers that are processes: the suite of all runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agents.runtime.sessions.conformance import ExecutionConformance

if TYPE_CHECKING:
    from tests.agents.harness import Harness


class TestProcessExecution(ExecutionConformance):
    """All of it."""

    @pytest.fixture
    def harness(self, process_harness: Harness) -> Harness:
        return process_harness
