"""The Docker engine that tests run on.

One that answers is taken: at DOCKER_HOST, else at the usual socket.  If none does, root starts a private one, once for
a test run with all its workers; it goes away with the last of them (see `tests.lab.machines.leases`).
DORM_TEST_ENGINE=private starts one in any case.  If neither can be had tests are skipped, but in CI, where CI=true,
that is a failure: nothing may be left untested there in silence.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from compose.engine import DEFAULT_URL
from tests.lab.machines.dockerd import Dockerd, answers, why_not
from tests.lab.machines.leases import Lease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import NoReturn


@contextlib.asynccontextmanager
async def docker_engine(run_dir: Path) -> AsyncIterator[str]:
    """URL of an engine; `run_dir` is a directory that all workers of the test run share."""
    found = None if os.environ.get("DORM_TEST_ENGINE") == "private" else await _running()
    if found is not None:
        yield found
        return
    if reason := why_not():
        unavailable(f"no Docker engine answers, and none can be started: {reason}")
    lease, url = await _shared(run_dir)
    try:
        yield url
    finally:
        lease.release()


def unavailable(reason: str) -> NoReturn:
    """Skips the test; fails it in CI."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


async def _running() -> str | None:
    url = os.environ.get("DOCKER_HOST")
    if url is not None:
        return url  # asked for by name: a test that cannot reach it shall fail, not run elsewhere
    return DEFAULT_URL if await answers(DEFAULT_URL) else None


async def _shared(run_dir: Path) -> tuple[Lease, str]:
    """A hold on the test run's private engine, which the first worker starts."""
    current = run_dir / "docker-engine"
    with (run_dir / "docker-engine.lock").open("w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)  # blocks this worker's loop, on which nothing else runs yet
        with contextlib.suppress(FileNotFoundError):
            lease = Lease.join(current.read_text())
            if lease is not None:
                url = Dockerd(lease.home / "engine", f"{lease.name}/engine").url
                if await answers(url):
                    return lease, url
                lease.release()
        lease = Lease.take()
        engine = Dockerd(lease.home / "engine", f"{lease.name}/engine")
        try:
            await engine.start()
        except BaseException:
            lease.release()
            raise
        current.write_text(lease.name)
        return lease, engine.url
