"""Which machine holds a node's name if two claim it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dorm.core.state import Refused
from dorm.core.timing import LEASE_MARGIN_S
from events import kinds as k
from tests.agents.folding import desired_of
from tests.core.records import START, Bench, joined

if TYPE_CHECKING:
    from agents.desired import Desired

OLD, NEW = "a" * 32, "b" * 32


def bench(**fields: Any) -> Bench:
    """One app that runs on node n3, which the first machine holds."""
    made = Bench()
    made.add(joined("n3", identity=OLD, **fields))
    made.submit(n_min=1, n_max=1)
    made.settle()
    app = made.app()
    made.add(k.ContainerStarted(app=app.id, generation=1, slot=0, node="n3", identity=OLD))
    return made


def newcomer(address: str = "addr-new") -> k.NodeJoined:
    return joined("n3", cpu=16, identity=NEW, address=address)


def exit_of(made: Bench, identity: str) -> k.ContainerExited:
    return k.ContainerExited(
        app=made.app().id, generation=1, slot=0, node="n3", reason="lost", message="gone", identity=identity
    )


def states(made: Bench) -> list[str]:
    return [one.state for generation in made.app().generations.values() for one in generation.containers.values()]


def fold(made: Bench) -> Desired:
    return desired_of(made.records, "n3")


@pytest.mark.parametrize("silent_s", [0, 20, 300])
def test_a_name_with_a_running_lease_goes_to_no_other_machine(silent_s: float) -> None:
    made = bench()
    if silent_s:
        made.conclude(n3=silent_s)
    before = made.state.nodes["n3"].condition
    made.add(newcomer())
    node = made.state.nodes["n3"]
    assert (node.identity, node.condition, node.capacity) == (OLD, before, {"cpu": 4000})
    assert node.refused == Refused(NEW, "addr-new", made.state.time)
    assert (fold(made).holder, fold(made).may_hold(NEW), fold(made).may_hold(OLD)) == (OLD, False, True)
    assert states(made) == ["running"]


def test_its_facts_about_containers_that_it_never_had_change_nothing() -> None:
    made = bench()
    made.add(newcomer())
    ignored = made.state.counters.ignored
    for said in (
        exit_of(made, NEW),
        k.NodeLeft(node="n3", identity=NEW),
        k.NodeDrainRequested(node="n3", until_rejoin=True, identity=NEW),
    ):
        made.add(said, "n3")
    assert made.state.counters.ignored == ignored + 3
    assert states(made) == ["running"]
    assert made.state.nodes["n3"].usable
    assert len(fold(made).due) == 1
    made.add(exit_of(made, OLD))
    assert states(made) == ["exited"]


def test_another_machine_takes_the_name_over_once_the_lease_has_ended() -> None:
    made = bench()
    made.add(newcomer())
    made.conclude(n3=20)
    made.conclude(n3=300 + LEASE_MARGIN_S + 1)
    assert states(made) == ["exited"]
    assert fold(made).may_hold(NEW)
    made.add(newcomer())
    node = made.state.nodes["n3"]
    assert (node.identity, node.condition, node.capacity, node.refused) == (NEW, "up", {"cpu": 16000}, None)
    assert fold(made).holder == NEW
    # What the first one says late is about nothing that is there.
    made.settle()
    ignored = made.state.counters.ignored
    made.add(exit_of(made, OLD))
    made.add(k.NodeLeft(node="n3", identity=OLD))
    made.add(joined("n3", identity=OLD))
    assert made.state.counters.ignored == ignored + 2
    assert (made.state.nodes["n3"].identity, made.state.nodes["n3"].condition) == (NEW, "up")
    assert fold(made).holder == NEW


def test_it_takes_the_name_over_at_once_after_a_good_end() -> None:
    made = bench()
    made.add(exit_of(made, OLD))
    made.add(k.NodeLeft(node="n3", identity=OLD))
    made.add(newcomer())
    assert made.state.nodes["n3"].identity == fold(made).holder == NEW


@pytest.mark.parametrize(("left", "condition"), [("p1", "up"), ("p2", "left"), ("", "left")])
def test_a_departure_that_arrives_after_the_next_process_has_joined_changes_nothing(left: str, condition: str) -> None:
    """An agent that is stopped and started again, while the server still has its last message from before."""
    made = bench(process="p1")
    made.add(joined("n3", identity=OLD, process="p2"))
    made.add(k.NodeLeft(node="n3", identity=OLD, process=left))
    assert made.state.nodes["n3"].condition == fold(made).condition == condition
    assert states(made) == (["running"] if condition == "up" else ["exited"])
    assert len(fold(made).due) == (condition == "up")


def test_the_same_machine_may_return_at_any_time() -> None:
    made = bench()
    made.add(newcomer())
    made.conclude(n3=20)
    made.add(joined("n3", identity=OLD))
    node = made.state.nodes["n3"]
    assert (node.condition, states(made)) == ("up", ["running"])
    assert node.refused is not None, "who else asked stays to be seen"


def test_an_upgraded_agent_succeeds_the_one_without_an_identity() -> None:
    made = bench()
    made.state.nodes["n3"].identity = ""
    made.add(newcomer())
    assert made.state.nodes["n3"].identity == NEW
    assert states(made) == ["running"]


def test_an_older_agent_does_not_get_the_name_of_one_with_an_identity() -> None:
    made = bench()
    made.add(joined("n3"))
    node = made.state.nodes["n3"]
    assert (node.identity, node.refused) == (OLD, Refused("", "addr-n3", START))


def test_an_identity_is_bounded() -> None:
    made = bench()
    unreadable = made.state.counters.unreadable
    made.add(joined("n3", identity="x" * 65))
    assert made.state.counters.unreadable == unreadable + 1
