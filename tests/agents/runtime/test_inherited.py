"""Programs do not inherit what the agent's service gives the agent: its protection, priority, limits and mask."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents.runtime.docker.container_config import OOM_SCORE
from agents.runtime.interface import Command
from agents.runtime.process import attributes, records
from agents.runtime.process.runtime import ProcessRuntime
from tests.agents.harness import Harness, container_dir, output, says

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.slow
LOOK = "echo $(cat /proc/self/oom_score_adj) $(nice) $(umask) $(ulimit -Sn)"
_SCORE = Path("/proc/self/oom_score_adj")


@pytest.fixture
def service() -> Iterator[None]:
    """Let this process, the agent of the test, have what a service might give it."""
    score, mask, limit = _SCORE.read_text(), os.umask(0o077), resource.getrlimit(resource.RLIMIT_NOFILE)
    _SCORE.write_text("300")
    with contextlib.suppress(PermissionError):
        _SCORE.write_text("-400")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, limit[1]))
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, 5)
    try:
        yield
    finally:
        if os.geteuid() == 0:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        os.umask(mask)
        _SCORE.write_text(score)


@pytest.fixture
async def runtime(process_harness: Harness, service: None) -> AsyncIterator[ProcessRuntime]:
    async with process_harness.opened() as runtime:
        assert isinstance(runtime, ProcessRuntime)
        yield runtime


def expected() -> str:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    status = Path("/proc/self/status").read_text().splitlines()
    capabilities = int(next(line.split()[1] for line in status if line.startswith("CapEff:")), 16)
    may_raise = bool(capabilities >> 24 & 1)  # CAP_SYS_RESOURCE of capabilities(7)
    files = attributes.OPEN_FILES if may_raise else min(attributes.OPEN_FILES, most)
    return f"{OOM_SCORE} {0 if os.geteuid() == 0 else os.nice(0)} 0022 {files}"


async def test_programs_sessions_and_commands_have_their_own(process_harness: Harness, runtime: ProcessRuntime) -> None:
    spec = process_harness.shell(f"{LOOK}; echo ready; while :; do sleep 0.05; done")
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"ready")
    assert (await output(runtime, spec.key)).decode().splitlines()[0] == expected()
    found = records.look(container_dir(runtime, spec.key), spec.key)
    assert found is not None
    assert Path(f"/proc/{found.supervisor}/oom_score_adj").read_text() == _SCORE.read_text(), "it is the agent's part"

    assert await runtime.run(spec.key, ("sh", "-c", f"{LOOK}; pwd; echo $DORM_PROGRESS >&2"), 30.0) == 0
    said = (await output(runtime, spec.key)).decode().splitlines()
    assert said[-3:] == [expected(), str(runtime.run_dir(spec.key)), f"{runtime.run_dir(spec.key)}/progress.jsonl"]
    assert await runtime.run(spec.key, ("no-such-command",), 30.0) == 127

    execution = await runtime.execute(spec.key, Command(("sh", "-c", LOOK), "session", None))
    try:
        assert await execution.read() == (1, f"{expected()}\n".encode())
    finally:
        await execution.close()
    await runtime.stop(spec.key, 0.0)
