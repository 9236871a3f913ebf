"""Events in lists: one line for each."""

from __future__ import annotations

from events.kinds import (
    ContainerExited,
    ContainerUsed,
    GenerationReleased,
    MembersReleased,
    NodeDrainRequested,
    NodeJoined,
    Placed,
)
from replay.gist import gist


def test_usual_values_are_left_out() -> None:
    released = GenerationReleased(app="a", generation=4, previous=3, checkpoints="f" * 32)
    assert gist(released) == "app=a generation=4 previous=3"
    assert "resume=False" in gist(released, whole=True)
    assert f"checkpoints={'f' * 32}" in gist(released, whole=True)
    assert gist(NodeDrainRequested(node="n1", reason="a worn fan")) == "node=n1 reason=a worn fan"
    assert gist(NodeDrainRequested(node="n1", drain=False)) == "node=n1 drain=False"


def test_amounts_are_formatted_for_people() -> None:
    joined = NodeJoined(
        node="n1", address="10.0.0.1", capacity={"cpu": 2000, "memory": 2**31}, ports=(1, 9), build="dorm 1"
    )
    assert gist(joined) == "node=n1 address=10.0.0.1 with 2 cores, 2 GiB, dorm 1"
    exited = ContainerExited(app="a", generation=1, slot=0, node="n1", exit_code=3, usage=ContainerUsed(0.25, 7, 1.5))
    assert gist(exited).endswith("exit_code=3 usage={cpu_s: 0.25, memory: 7, over_s: 1.5}")


def test_members_are_named_by_slot_and_node() -> None:
    released = MembersReleased(
        app="a-1", generation=1, membership=2, leavers=[0], members=[Placed(1, "n1", "127.0.0.1", 26001)], wait_s=0.5
    )
    assert gist(released) == "app=a-1 generation=1 membership=2 joins=1 on n1 leaves=[0] wait_s=0.5"
