"""`dorm logs` of ranks and generations, `dorm wait` and `dorm scale`, on a cluster of processes on this machine."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.e2e.commands import done, dorm, refused, running, until_printed
from tests.e2e.local_up import Up, leaving_nothing, talker, up, write_spec
from tests.e2e.story import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

_STAMP = re.compile(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    async with leaving_nothing(tmp_path_factory.mktemp("daily")) as folder, up(folder) as running_cluster:
        yield running_cluster


async def test_the_output_of_ranks_survives_a_change_of_scale(cluster: Up, tmp_path: Path) -> None:
    home = cluster.home
    await done(home, "submit", write_spec(tmp_path, talker("own", n_max=2)))
    assert await done(home, "wait", "own", "--for", "running", "--timeout", "60s") == "own runs\n"
    async with cluster.client() as client:
        id = (await client.app("own")).id
        both = [f"rank {rank} | I am {id} {rank} of 2" for rank in (0, 1)]
        async with asyncio.timeout(30):
            while sorted((await done(home, "logs", "own", "--all", "--grep", "I am")).splitlines()) != both:
                pass  # No event reports output.
        assert await done(home, "logs", "own", "--rank", "1", "--grep", "I am") == f"I am {id} 1 of 2\n"
        for options, code in (
            (["--rank", "7"], "rank.not_found"),
            (["--previous"], "generation.not_found"),
            (["--generation", "9"], "generation.not_found"),
            (["--since", "99999"], "moment.after_end"),
        ):
            assert f"[{code}]" in await refused(home, "logs", "own", *options, code=1)
        assert "[wait.timed_out]" in await refused(home, "wait", "own", "--timeout", "1s", code=124)
        assert "[moment.malformed]" in await refused(home, "logs", "own", "--since", "soon", code=2)
        for since in ([], ["--since", "-1h"], ["--since", "1"]):
            timed = (await done(home, "logs", "own", "--all", "-t", "--grep", "I am", *since)).splitlines()
            assert sorted(_STAMP.sub("", line) for line in timed) == both
            times = [_STAMP.search(line).group() for line in timed]  # type: ignore[union-attr]
            assert times == sorted(times)
        assert await done(home, "logs", "own", "--since", "2100-01-01", "--tail", "5") == ""
        assert (await done(home, "logs", "own", "--rank", "1", "-t", "--tail", "1")).startswith("20")

        assert "[spec.n_min.no_room]" in await refused(home, "scale", "own", "999", code=1)
        assert (await done(home, "scale", "own", "1")).startswith(
            "own: n_min 1, n_max 1; it restarts from the beginning"
        )
        await until(client, lambda s: s.apps[id].adjustments == 1 and s.apps[id].phase == "running", "it shrinks")
        assert list((await client.app(id)).generations) == [2]
    for which in (["--previous"], ["--generation", "1"]):
        assert sorted((await done(home, "logs", "own", *which, "--all", "--grep", "I am")).splitlines()) == both
        assert (await done(home, "logs", "own", *which, "--slot", "1")).startswith(f"I am {id} 1 of 2\nline 0\n")

    log = tmp_path / "followed"
    async with running(home, log, "logs", "-f", "--all", "own", "--grep", "I am") as process:
        await until_printed(log, f"rank 0 | I am {id} 0 of 1\n", process)
        await done(home, "cancel", "own", "--wait")
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_waiting_ends_with_how_the_apps_ended(cluster: Up, tmp_path: Path) -> None:
    home = cluster.home
    for name, code in (("good", 0), ("bad", 3)):
        await done(home, "submit", write_spec(tmp_path, talker(name, 1, 0.0, code)))
    code, out, err = await dorm(home, "wait", "good", "bad")
    assert (code, out) == (1, "good completed\n")
    assert err.startswith("error: bad failed: ")
    assert err.endswith(" [app.failed]\n")
    ended = await done(home, "wait", "good", "bad", "--for", "ended")
    assert sorted(ended.splitlines()) == ["bad failed", "good completed"]
    assert "[app.completed]" in (await dorm(home, "wait", "good", "--for", "running"))[2]
