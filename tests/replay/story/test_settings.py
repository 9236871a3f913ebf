"""A change of settings is named as the cause of its effects on nodes and apps: in stories and in `dorm explain`."""

from __future__ import annotations

from dorm.core.evolve import evolve
from dorm.core.state import State
from events import kinds as k
from replay.story.app_teller import AppTeller
from replay.story.explanation import Witness, explain
from replay.story.node import NodeTeller
from tests.core.records import Bench


def told(bench: Bench) -> tuple[AppTeller, NodeTeller, str]:
    """The stories of app and node n2, and the explanation."""
    app, node, witness, state = AppTeller("app"), NodeTeller("n2"), Witness("app"), State()
    for record in bench.records:
        folded = evolve(state, record)
        for follower in (app, node, witness):
            follower.see(state, record, folded)
    return app, node, explain(state, witness, bench.now).text


def lowered() -> Bench:
    bench = Bench(n1=2, n2=2)
    bench.running("app", n_max=4, n_min=4)
    bench.add(k.PolicyChanged(by="eve", heartbeat_s=1, node_grace_s=3, node_lease_s=6), "eve")
    return bench


def test_a_node_that_a_shorter_grace_time_lost() -> None:
    bench = lowered()
    change = str(bench.state.seq)
    bench.wait(10)
    bench.conclude(n1=1, n2=8)
    app, node, text = told(bench)
    lost = next(chapter for chapter in app.story() if chapter.what == "node_lost")
    here = next(chapter for chapter in node.story() if chapter.what == "lost")
    for chapter in (lost, here):
        assert "the cause is a change of settings: eve had lowered node_grace from 15s to 3s" in chapter.text
        assert change in [cause.position for cause in chapter.causes]
    settings = next(chapter for chapter in app.story() if chapter.what == "settings")
    assert settings.text == "eve lowered node_grace from 15s to 3s and node_lease from 5m to 6s"
    assert f"eve had lowered node_grace from 15s to 3s (record {change})" in text


def test_a_change_is_not_blamed_for_a_silence_that_would_have_lost_the_node_anyway() -> None:
    bench = lowered()
    bench.wait(60)
    bench.conclude(n1=1, n2=30)
    app, _, text = told(bench)
    lost = next(chapter for chapter in app.story() if chapter.what == "node_lost")
    assert "settings" not in lost.text + text


def test_containers_that_a_shorter_lease_killed() -> None:
    bench = lowered()
    change = str(bench.state.seq)
    bench.wait(30)
    app_id = bench.app().id
    for slot, container in bench.app().generations[1].containers.items():
        if container.node == "n2":
            bench.add(
                k.ContainerExited(
                    app=app_id, generation=1, slot=slot, node="n2", exit_code=137, asked=True, message=k.CUT_OFF
                )
            )
    app, node, text = told(bench)
    killed = [chapter for chapter in app.story() if chapter.what == "killed"]
    assert len(killed) == 1, "once for a generation"
    assert "eve had lowered node_lease from 5m to 6s" in killed[0].text
    assert [cause.position for cause in killed[0].causes] == [change]
    assert "eve had lowered node_lease" in next(c for c in node.story() if c.what == "container_killed").text
    assert "eve had lowered node_lease from 5m to 6s" in text


def test_agents_of_earlier_releases_follow_settings_that_are_refused_today() -> None:
    """And their log says who asked for it."""
    bench = Bench(n1=2, n2=2)
    bench.running("app", n_max=4, n_min=4)
    bench.add(k.PolicyChanged(by="eve", node_lease_s=1), "eve")
    slot = next(slot for slot, one in bench.app().generations[1].containers.items() if one.node == "n2")
    bench.add(
        k.ContainerExited(
            app=bench.app().id, generation=1, slot=slot, node="n2", exit_code=137, asked=True, message=k.CUT_OFF
        )
    )
    app, _, text = told(bench)
    assert "eve requested settings that were refused: node_lease (1s)" in next(
        chapter.text for chapter in app.story() if chapter.what == "settings"
    )
    assert "eve had requested harmful times" in text
