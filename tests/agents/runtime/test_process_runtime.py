"""The process runtime: the suite of all runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agents.harness import ended, output
from tests.agents.runtime.conformance import RuntimeConformance

if TYPE_CHECKING:
    from tests.agents.harness import Harness


class TestProcessRuntime(RuntimeConformance):
    """All of it; what is its own is in test_process_crashes.py."""

    @pytest.fixture
    def harness(self, process_harness: Harness) -> Harness:
        return process_harness

    async def test_a_program_sees_only_the_gpus_it_was_given(self, harness: Harness) -> None:
        async with harness.opened() as runtime:
            two = harness.spec("printenv", "CUDA_VISIBLE_DEVICES", resources={"gpu": 2}, devices=("0", "2"))
            none = harness.spec("sh", "-c", 'echo "<$CUDA_VISIBLE_DEVICES>"')
            for spec, said in ((two, b"0,2\n"), (none, b"<>\n")):
                await runtime.ensure(spec)
                await ended(runtime, spec.key)
                assert await output(runtime, spec.key) == said
