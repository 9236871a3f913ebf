"""What every runtime keeps of the node's lease, as tests; part of `conformance`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psutil
import pytest

from agents.runtime.interface import Unavailable
from tests.agents.harness import PATIENCE_S, POLITE, STUBBORN, Harness, ended, look, output, processes, says
from tests.agents.killed_agent import start_and_kill
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agents.runtime.interface import Runtime


class LeaseConformance:
    """The tests of the lease, and the runtime that all tests see."""

    @pytest.fixture
    async def runtime(self, harness: Harness) -> AsyncIterator[Runtime]:
        async with harness.opened() as runtime:
            yield runtime

    @pytest.mark.slow
    async def test_containers_end_with_the_lease_even_if_the_agent_is_dead(
        self, harness: Harness, unused_number: str
    ) -> None:
        spec = harness.shell(f"setsid sleep {unused_number} & {STUBBORN}")
        await start_and_kill(harness.expression, spec, None, lease_s=1.0)
        # By what the machine shows: no runtime is open that could have helped.
        _, alive = await asyncio.to_thread(psutil.wait_procs, processes(unused_number), PATIENCE_S)
        assert alive == []
        async with harness.opened() as runtime:
            seen = await ended(runtime, spec.key)
            assert (seen.exit_code, seen.lease_ended) == (137, True)
            left = await runtime.lease_left()
            assert left is not None
            assert left <= 0

    @pytest.mark.slow
    async def test_nothing_is_started_when_the_lease_is_over(self, harness: Harness, runtime: Runtime) -> None:
        await runtime.extend_lease(0.0)
        spec = harness.shell("echo ran; sleep 1.5; exit 3")
        for _ in range(2):
            with raises(Unavailable, "node_lease.expired"):
                await runtime.ensure(spec)
            assert [seen for seen in await runtime.list() if seen.state != "created"] == []
        await runtime.extend_lease(600.0)
        await runtime.ensure(spec)
        seen = await ended(runtime, spec.key)
        assert (seen.exit_code, seen.lease_ended) == (3, False)
        assert await output(runtime, spec.key) == b"ran\n"

    @pytest.mark.slow
    async def test_running_containers_are_killed_when_the_lease_is_shortened_to_zero(
        self, harness: Harness, runtime: Runtime
    ) -> None:
        spec = harness.shell(POLITE)
        await runtime.ensure(spec)
        await runtime.extend_lease(0.0)
        assert (await ended(runtime, spec.key)).lease_ended
        await runtime.extend_lease(600.0)
        spec = harness.shell("sleep 1.5; exit 3")
        await runtime.ensure(spec)
        seen = await ended(runtime, spec.key)
        assert (seen.exit_code, seen.lease_ended) == (3, False)

    async def test_a_lease_that_is_extended_in_time_ends_nothing(
        self, harness: Harness, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever becomes of wall clocks, and also over the agent's restart."""
        assert await runtime.lease_left() is None
        spec = harness.shell(POLITE)
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        await runtime.extend_lease(2.0)
        monkeypatch.setattr("time.time_ns", lambda: 0)
        monkeypatch.setattr("time.time", lambda: 0.0)
        await runtime.extend_lease(500.0)
        monkeypatch.undo()
        await asyncio.sleep(2.5)  # longer than the lease that was replaced
        await runtime.close()
        await runtime.open()
        left = await runtime.lease_left()
        assert left is not None
        assert 400 < left < 500
        assert (await runtime.list())[0].state == "running"
        await runtime.stop(spec.key, PATIENCE_S)
        seen = await look(runtime, spec.key)
        assert seen is not None
        assert (seen.exit_code, seen.lease_ended) == (7, False)
