"""The Docker engine that tests run on.

An engine that answers at DOCKER_HOST, else at the usual socket, is used.  If none does, root starts a private one, once for
all workers of a test run; it is removed with the last of them (see `tests.lab.machines.leases`).
DORM_TEST_ENGINE=private starts one in any case, and DORM_TEST_ENGINE=none leaves the tests without one.  Without any engine,
tests are skipped; in CI (CI=true), they fail, because nothing may stay untested there unnoticed.
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
    """Return the URL of an engine; `run_dir` is a directory that all workers of the test run share."""
    found = None if os.environ.get("DORM_TEST_ENGINE") in ("private", "none") else await _running()
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
    """Skip the test; in CI, fail it."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


async def _running() -> str | None:
    url = os.environ.get("DOCKER_HOST")
    if url is not None:
        return url  # named explicitly: a test that cannot reach it must fail, not run elsewhere
    return DEFAULT_URL if await answers(DEFAULT_URL) else None


async def _shared(run_dir: Path) -> tuple[Lease, str]:
    """Yield the test run's private engine, which the first worker starts."""
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
