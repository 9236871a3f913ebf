"""What one line says of an event: all of it for programs and the curious, and what people can read otherwise."""

from __future__ import annotations

from events.kinds import GenerationReleased, MembersReleased, NodeJoined, Placed
from replay.gist import gist

JOINED = NodeJoined(
    node="n1", address="10.0.0.1", capacity={"cpu": 1500, "memory": 2**31, "gpu": 2}, ports=(26000, 26099),
    identity="ab" * 16, checkpoints="cd" * 16, abilities=["edits"], prepares=True,
)  # fmt: skip


def test_a_line_has_what_people_can_read() -> None:
    assert gist(JOINED) == (
        "node=n1 address=10.0.0.1 capacity=1.5 cores, 2 GiB, 2 gpu ports=(26000, 26099) runtime=process"
    )


def test_the_whole_line_leaves_nothing_out() -> None:
    line = gist(JOINED, whole=True)
    for part in ("identity=abab", "checkpoints=cdcd", "abilities=['edits']", "'memory': 2147483648"):
        assert part in line


def test_zeros_that_are_usual_are_left_out_and_others_are_not() -> None:
    assert gist(GenerationReleased(app="a-1", generation=1, previous=0)) == (
        "app=a-1 generation=1 resume=False stop_s=0 wait_s=0"
    )
    assert "lost_steps=7" in gist(GenerationReleased(app="a-1", generation=2, previous=1, lost_steps=7))


def test_members_are_named_by_slot_and_node() -> None:
    released = MembersReleased(
        app="a-1", generation=1, membership=2, leavers=[0], members=[Placed(1, "n1", "127.0.0.1", 26001)], wait_s=0.5
    )
    assert gist(released) == "app=a-1 generation=1 membership=2 joins=1 on n1 leaves=[0] wait_s=0.5"
