"""The process runtime: the suite of all runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agents.runtime_conformance import RuntimeConformance

if TYPE_CHECKING:
    from tests.agents.harness import Harness


class TestProcessRuntime(RuntimeConformance):
    """All of it; what is its own is in test_process_crashes.py."""

    @pytest.fixture
    def harness(self, process_harness: Harness) -> Harness:
        return process_harness
