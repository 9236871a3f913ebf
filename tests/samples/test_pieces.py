"""Starters whose containers share pieces of work and never talk to each other: a shell script, and scikit-learn."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.partition import REPOSITORY
from tests.samples.starter import printed, resized, starter, two_nodes

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.client.client import Client

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(400)]


async def prime_count(client: Client, pieces: int, *, pace_s: float, **fields: Any) -> None:
    """Run the script through two resizes; it has to find as many primes as there are.  At this pace it is not over before the
    second resize, however slowly containers start."""
    spec = starter("shell_primes", env={"PIECES": str(pieces), "PACE": str(pace_s)}, steps=pieces, **fields)
    app = await resized(client, spec, (1, 3, 2), each=2, longest_s=120.0)
    assert (app.step, app.checkpoint) == (pieces, pieces)
    primes = sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, pieces * 1000 + 1))
    assert f"{primes} primes up to {pieces * 1000}\n" in await printed(client, app)


@pytest.mark.soak
async def test_a_shell_script_finds_all_primes_through_two_resizes(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as client:
        await prime_count(client, 40, pace_s=1.0)


@pytest.mark.docker
@pytest.mark.soak
async def test_a_shell_script_does_so_in_docker(tmp_path: Path, docker_host: str, docker_image: str) -> None:
    async with two_nodes(tmp_path, runtime="docker", docker=docker_host) as client:
        await prime_count(client, 40, pace_s=2.0)


def alone() -> dict[str, Any]:
    """Return the result of one worker without a resize."""
    command = [sys.executable, "-m", "compose.apps.starters.sklearn_search", "--folds", "2"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=100)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["result"]
    return result


@pytest.mark.soak
async def test_a_search_finds_the_same_best_settings_through_two_resizes(tmp_path: Path) -> None:
    best = alone()
    async with two_nodes(tmp_path / "cluster") as client:
        found = starter("sklearn_search")
        spec = {**found, "command": [*found["command"][:3], "--folds", "2", "--pace", "0.5"]}
        app = await resized(client, spec, (1, 3, 2), each=2, longest_s=180.0)
        assert (app.step, app.checkpoint) == (24, 24)
        results = [line for line in (await printed(client, app)).splitlines() if line.startswith('{"result"')]
        assert results
        assert all(json.loads(line)["result"] == best for line in results)
