"""Hold, delay, depend and limit, as people ask for them, on a cluster of this machine that knows its users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.e2e.commands import done, dorm, refused
from tests.e2e.local_up import Up, leaving_nothing, named, talker, trainer, up, write_spec
from tests.e2e.story import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    folder = tmp_path_factory.mktemp("gates")
    async with leaving_nothing(folder), up(folder, "--trust-apps", known=True) as running_cluster:
        for name in ("ann", "bob"):
            await done(running_cluster.home, "user", "add", name, "--to", str(folder / f"{name}.json"))
        yield running_cluster


def keys(cluster: Up, who: str) -> tuple[str, str]:
    return "--credentials", str(cluster.home.parent / f"{who}.json")


async def test_a_plain_user_holds_an_own_app_which_continues_from_its_checkpoint(cluster: Up, tmp_path: Path) -> None:
    home, ann, bob = cluster.home, keys(cluster, "ann"), keys(cluster, "bob")
    file = write_spec(tmp_path, trainer("digits", 120))
    said = await done(home, "submit", file, "--hold", *ann)
    assert said.startswith("digits is accepted as digits-")
    async with cluster.client() as client:  # The admin who started the cluster reads everything.
        id = named(await client.state(), "digits").id
        assert "held by ann: submitted so" in await done(home, "ps", *ann)
        explained = await done(home, "explain", "digits", *ann)
        assert "It is held by ann: submitted so (hold)" in explained
        assert "[app.held]" in await refused(home, "hold", "digits", *ann, code=1)
        assert "[app.not_found]" in await refused(home, "release", id, *bob, code=1)
        assert await done(home, "release", "digits", *ann) == "digits is released; `dorm ps` shows when it runs\n"
        await until(client, lambda s: s.apps[id].step > 5, "it works")

        said = await done(home, "hold", id, "--reason", "it fills the disk")
        assert said == "digits is held: it gives its containers back until `dorm release digits`\n"
        state = await until(client, lambda s: s.apps[id].phase == "waiting", "it has given its containers back")
        assert (state.apps[id].checkpoint or 0) > 0
        assert "[app.held_by_operator]" in await refused(home, "release", "digits", *ann, code=1)
        noted = await done(home, "describe", "digits", *ann)
        assert "held by the operator " in noted
        assert ": it fills the disk" in noted
        await done(home, "release", id)
        assert await done(home, "wait", "digits", "--timeout", "60s", *ann) == "digits completed\n"
        state = await client.state()
        assert (state.apps[id].failures, state.apps[id].lost_steps) == (0, 0)
    story = await done(home, "story", "digits", *ann)
    assert "released it" in story
    assert "held it: it fills the disk" in story


async def test_files_that_wait_for_each_other_run_in_their_order(cluster: Up, tmp_path: Path) -> None:
    home = cluster.home
    prep = write_spec(tmp_path, talker("prep", 1, 0.0, start_after="1s"))
    train = write_spec(tmp_path, talker("train", 1, 0.0, after=["prep"]))
    never = write_spec(tmp_path, talker("never", 1, 0.0, after=[{"app": "train", "when": "failed"}]))
    code, out, err = await dorm(home, "submit", never, train, prep, "--wait")
    assert code == 1
    assert out.index("prep completed") < out.index("train completed")
    why = "train completed, so it can't fail, and never was to run once it had failed"
    assert err == f"error: never cancelled: {why} [app.cancelled]\n"
    circle = write_spec(tmp_path, talker("circle", 1, 0.0, after=["round"]))
    other = write_spec(tmp_path, talker("round", 1, 0.0, after=["circle"]))
    assert "[spec.after.cycle]" in await refused(home, "submit", circle, other, code=2)
    assert "[spec.after.unknown]" in await refused(home, "submit", circle, code=1)
    assert "circle would be refused: after: there is no app 'round' of yours" in await refused(
        home, "plan", circle, code=1
    )


async def test_an_app_ends_with_a_checkpoint_once_it_has_run_for_as_long_as_it_may(cluster: Up, tmp_path: Path) -> None:
    home = cluster.home
    await done(home, "submit", write_spec(tmp_path, trainer("short", 100_000, max_runtime="2s")))
    code, out, err = await dorm(home, "wait", "short", "--for", "completed", "--timeout", "60s")
    assert (code, out) == (1, "")
    assert "short cancelled: it has run for 2s, as long as it may (max_runtime)" in err
    async with cluster.client() as client:
        state = await until(client, lambda s: not named(s, "short").stopping, "it has stopped")
        app = named(state, "short")
        assert (app.end_code, app.checkpoint) == ("max_runtime", app.step)
        assert [one.killed for one in app.generations[app.generation].containers.values()] == [False, False]
    assert " of at most 2s" in await done(home, "describe", "short")
