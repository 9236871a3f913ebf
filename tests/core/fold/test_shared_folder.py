"""The cluster's folder of checkpoints, and nodes with another one."""

from __future__ import annotations

import msgspec

from dorm.core.failures import MOST_UNMOUNTED
from dorm.core.query.trying import touched
from dorm.core.query.views import node_rows
from dorm.core.shared_folder import LEFT_ALONE_S
from events import kinds as k
from events.limits import LONGEST_TEXT
from tests.core.records import Bench, joined

RIGHT, OTHER = "a" * 32, "b" * 32


def join(bench: Bench, node: str, folder: str) -> None:
    bench.add(msgspec.structs.replace(joined(node, 2), checkpoints=folder), node)


def foreign(bench: Bench) -> list[str]:
    return [name for name, node in sorted(bench.state.nodes.items()) if node.foreign]


def test_a_node_with_another_folder_gets_no_containers() -> None:
    bench = Bench()
    for node, folder in (("a", RIGHT), ("b", RIGHT), ("c", OTHER)):
        join(bench, node, folder)
    bench.submit(n_max=6)
    bench.settle()
    assert set(bench.app().generations[1].by_node()) == {"a", "b"}
    row = next(row for row in node_rows(bench.state) if row.name == "c")
    assert row.condition == "unmounted"
    assert f"dorm policy set checkpoints={OTHER}" in row.trouble


def test_the_first_folder_is_outvoted_as_long_as_nothing_runs_there() -> None:
    bench = Bench()
    join(bench, "a", OTHER)
    assert (bench.state.checkpoints, foreign(bench)) == (OTHER, [])
    join(bench, "b", RIGHT)
    assert (bench.state.checkpoints, foreign(bench)) == (OTHER, ["b"])
    join(bench, "c", RIGHT)
    assert (bench.state.checkpoints, foreign(bench)) == (RIGHT, ["a"])


def test_the_folder_with_checkpoints_stays_in_force_until_an_operator_changes_it() -> None:
    bench = Bench()
    join(bench, "a", RIGHT)
    app = bench.running(n_max=1)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=7), "a")
    for node in ("b", "c"):
        join(bench, node, OTHER)
    assert (bench.state.checkpoints, foreign(bench)) == (RIGHT, ["b", "c"])
    bench.add(k.PolicyChanged(checkpoints=OTHER))
    assert (bench.state.checkpoints, foreign(bench)) == (OTHER, ["a"])
    bench.add(k.PolicyChanged(checkpoints=""))
    assert bench.state.checkpoints == OTHER
    assert bench.state.counters.ignored == 0


def test_a_checkpoint_in_another_folder_is_not_believed() -> None:
    bench = Bench()
    for node in ("a", "b"):
        join(bench, node, RIGHT)
    app = bench.running(n_max=4, n_min=4)
    assert set(app.generations[1].by_node()) == {"a", "b"}
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=7), "a")
    for folder in (k.NO_FOLDER, OTHER):
        join(bench, "a", folder)
        assert foreign(bench) == ["a"]
        bench.add(k.AppCheckpointed(app=app.id, generation=1, step=9), "a")
        assert bench.app().checkpoint == 7
    join(bench, "a", RIGHT)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=9), "a")
    assert (bench.app().checkpoint, foreign(bench)) == (9, [])


def test_a_release_names_the_folder_so_that_an_agent_without_its_mount_can_refuse_the_start() -> None:
    bench = Bench()
    join(bench, "a", RIGHT)
    bench.submit(n_max=1)
    said = bench.settle()
    assert [fact.checkpoints for fact in said if isinstance(fact, k.GenerationReleased)] == [RIGHT]
    join(bench, "a", OTHER)
    assert bench.app().generations[1].folder == RIGHT, "where it works does not change with what is mounted later"


def test_another_folder_can_become_the_clusters_once_the_last_app_has_ended() -> None:
    bench = Bench()
    join(bench, "a", RIGHT)
    bench.running(n_max=1)
    join(bench, "b", OTHER)
    join(bench, "c", OTHER)
    assert foreign(bench) == ["b", "c"]
    bench.all_exited("app", 0)
    bench.settle()
    assert bench.app().ended == "completed"
    assert (bench.state.checkpoints, foreign(bench)) == (OTHER, ["a"])


def test_a_mount_that_returns_on_one_node_first_shrinks_no_app() -> None:
    """The other agents notice theirs within 5 s.  A restart on the first node alone, and the wait until the app may grow
    again, would cost it a minute."""
    bench = Bench()
    for node in ("a", "b"):
        join(bench, node, RIGHT)
    app = bench.running(n_max=4)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=7), "a")
    assert set(app.generations[1].by_node()) == {"a", "b"}
    for node in ("a", "b"):
        bench.wait(1)
        join(bench, node, k.NO_FOLDER)
    bench.wait(100)
    assert not [fact for fact in bench.settle() if isinstance(fact, k.Resized)]
    join(bench, "a", RIGHT)
    assert not [fact for fact in bench.settle() if isinstance(fact, k.Resized)]
    bench.wait(5)
    join(bench, "b", RIGHT)
    bench.wait(LEFT_ALONE_S)
    assert not [fact for fact in bench.settle() if isinstance(fact, k.Resized)]
    assert bench.app().generation == 1


def test_a_mount_that_returns_on_one_node_alone_gets_its_app() -> None:
    bench = Bench()
    for node in ("a", "b"):
        join(bench, node, RIGHT)
    app = bench.running(n_max=4)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=7), "a")
    for node in ("a", "b"):
        bench.wait(1)
        join(bench, node, k.NO_FOLDER)
    bench.wait(100)
    join(bench, "a", RIGHT)
    bench.wait(LEFT_ALONE_S - 1)
    assert not [fact for fact in bench.settle() if isinstance(fact, k.Resized)]
    bench.wait(1)
    (resized,) = [fact for fact in bench.settle() if isinstance(fact, k.Resized)]
    assert [{placed.node for placed in change.placement} for change in resized.changes] == [{"a"}]


def test_agents_of_earlier_releases_announce_nothing_and_are_used() -> None:
    bench = Bench()
    join(bench, "a", RIGHT)
    join(bench, "b", "")
    assert foreign(bench) == []


def test_a_container_that_does_not_find_its_checkpoints_costs_no_retry() -> None:
    bench = Bench(a=1)
    app = bench.submit()
    bench.settle()
    bench.add(
        k.ContainerExited(
            app=bench.app().id, generation=1, slot=0, node="a", reason="checkpoints", message="the folder is not there"
        ),
        "a",
    )
    bench.settle()
    assert app is not None
    assert (bench.app().ended, bench.app().failures) == ("", 0)
    assert bench.app().retry_at > 0


def test_a_folder_that_no_node_has_is_refused_for_it_would_stop_every_app() -> None:
    bench = Bench()
    for node in ("a", "b"):
        join(bench, node, RIGHT)
    bench.running(n_max=4)
    for folder in (OTHER, k.NO_FOLDER):
        change = k.PolicyChanged(id=f"change-{folder}", checkpoints=folder, node_grace_s=20.0)
        assert touched(bench.state, change, {}, bench.state.time).refused
        bench.add(change)
        assert (bench.state.checkpoints, foreign(bench)) == (RIGHT, [])
        assert bench.state.settings.node_grace_s == 20.0, (
            "agents, which know no other node, take the times all the same"
        )
        refused = bench.state.refused_changes[-1]
        assert (refused.id, refused.whole) == (change.id, False)
        assert folder in refused.reason
    join(bench, "c", OTHER)
    bench.add(k.PolicyChanged(checkpoints=OTHER))
    assert (bench.state.checkpoints, foreign(bench)) == (OTHER, ["a", "b"])


def test_before_any_node_is_there_the_operator_may_name_the_folder() -> None:
    bench = Bench()
    bench.add(k.PolicyChanged(checkpoints=RIGHT))
    join(bench, "a", OTHER)
    assert (bench.state.checkpoints, foreign(bench)) == (RIGHT, ["a"])


def test_a_refused_change_is_remembered_in_a_few_words() -> None:
    bench = Bench(a=1)
    bench.add(k.PolicyChanged(policy="x" * 500_000))
    assert len(bench.state.refused_changes[-1].reason) <= LONGEST_TEXT


def test_an_app_that_never_finds_its_checkpoints_fails_at_last() -> None:
    """It removed them itself, say: excused for ever, it would hold its room for ever and never run."""
    bench = Bench(a=1)
    bench.submit(retries={"limit": 2, "backoff": "1s", "longest": "1s"})
    bench.settle()
    tries = 0
    while not bench.app().ended and tries < 100:
        tries += 1
        bench.exited(code=None, reason="checkpoints", message="the folder is not there")
        bench.settle()
        bench.wait(12)
        bench.settle()
    assert (bench.app().ended, tries) == ("failed", MOST_UNMOUNTED + 2 + 1)
    assert "the folder is not there" in bench.app().end_reason


def test_one_upgraded_node_without_its_mount_does_not_exclude_the_others() -> None:
    bench = Bench()
    for node in ("a", "b", "c"):
        join(bench, node, "")
    join(bench, "a", OTHER)
    app = bench.running(n_max=6, n_min=6)
    assert (set(app.generations[1].by_node()), app.generations[1].folder) == ({"a", "b", "c"}, OTHER)
    for node in ("b", "c"):
        join(bench, node, RIGHT)
    assert (bench.state.checkpoints, foreign(bench)) == (RIGHT, ["a"])
