"""One partition of an app: its containers from the decision to the last one's end, and who joins and leaves meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from events.kinds import Doing

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pace(msgspec.Struct, gc=False):
    """How fast a generation works, from the first and the last progress that it reported: log times and steps."""

    first_at: int
    first_step: int
    last_at: int
    last_step: int

    @property
    def steps_per_s(self) -> float:
        """Steps per second, 0 while unknown."""
        steps, time = self.last_step - self.first_step, self.last_at - self.first_at
        return steps * 1e9 / time if steps > 0 and time > 0 else 0.0


class Mark(msgspec.Struct, frozen=True, gc=False):
    """One report of progress: its log time and step."""

    at: int
    step: int


class Delay(msgspec.Struct, frozen=True, gc=False):
    """What the node of a container does for it again and again (`ContainerDelayed`)."""

    doing: Doing
    reason: str
    since: int
    """Log time (UTC ns)."""
    failing: bool


ContainerState = Literal["desired", "running", "exited"]


class Container(msgspec.Struct, gc=False):
    """One slot of a generation, as far as the log shows."""

    slot: int
    node: str
    address: str
    port: int
    state: ContainerState = "desired"
    started_at: int = 0
    exited_at: int = 0
    exit_code: int | None = None
    asked: bool = False
    killed: bool = False
    """Whether it did not exit within its grace time."""
    reason: str = ""
    message: str = ""
    peer_lost: bool = False
    """Whether it ended because it had lost another container, by its own output."""
    delay: Delay | None = None
    """The cause that delays its start or its stop; None if there is none."""
    brief_ns: int | None = None
    """The time that it ran by its node's clock, if its end came so late to the log that it seems to have run for long
    (`dorm.core.faults`); else None."""

    @property
    def ran_ns(self) -> int:
        """How long it has run, after its end; 0 if it never started."""
        if not self.started_at:
            return 0
        return self.brief_ns if self.brief_ns is not None else self.exited_at - self.started_at

    @property
    def follows_another(self) -> bool:
        """Whether the end of another container explains its own."""
        return self.peer_lost


class LiveChange(msgspec.Struct):
    """A live adjustment in progress: from a generation's members to another membership of the same generation."""

    membership: int
    stay: list[int]
    """Slots of members that stay; all others leave by themselves once the membership trains."""
    newcomers: dict[int, Container]
    decided_at: int
    decided_seq: int
    released_at: int = 0
    """Log time at which it was announced and its newcomers were released; 0 while their room is not free."""


class Generation(msgspec.Struct):
    """One partition of an app, from the decision to its last container's end."""

    number: int
    containers: dict[int, Container]
    """Members by slot."""
    adjustment: str
    decided_at: int
    decided_seq: int
    master_port: int = 0
    void: bool = False
    """Whether it was overtaken between its basis and its decision: it is never released, another decision follows."""
    released_at: int = 0
    started_at: int = 0
    """Log time at which the last of its containers had started."""
    resume: bool = False
    failed: bool = False
    """Whether a `GenerationFailed` of it is on the log."""
    stopped_at: int = 0
    """Log time at which its last container had ended."""
    running: int = 0
    exited: int = 0
    """Numbers of containers in these states: kept as counters, because every start and exit needs them."""
    pace: Pace | None = None
    same_since: Mark | None = None
    """Last report when its members changed; None while they are the first."""
    checkpointed_at: int = 0
    """Log time of its last report of a checkpoint."""
    folder: str = ""
    """The cluster's folder of checkpoints when it was released."""
    worked: bool = False
    """Whether it has worked (`dorm.core.sizes`)."""

    master_address: str = ""
    """Address of the rendezvous, "" for none: it stays there even if the first slot leaves."""
    next_slot: int = 0
    """First slot above all that it has had: an exited container's key stays final."""
    membership: int = 1
    """The membership in which it trains, as far as the log shows; `containers` are its members."""
    announced: int = 1
    """The last membership that was announced to its members."""
    committed_at: int = 0
    """Log time at which that membership was committed, 0 for the first."""
    untold: int = 0
    """The committed membership that agents do not know yet, 0 for none."""
    change: LiveChange | None = None
    leaving: dict[int, Container] = {}
    """Containers that are no longer members and may still run, by slot."""
    accused: list[int] = []
    """Slots of members that their peers report as gone, and that may still run."""
    accused_at: int = 0
    """Log time since which its peers report the first of them; 0 if they have never reported one."""
    prepare_until: int = 0
    """Log time until which the previous generation may work on while this one is prepared; 0 if it stops at the
    decision."""
    preparing: list[str] = []
    """Nodes that have not prepared their containers yet."""
    prepared_at: int = 0
    """Log time at which the last of them had."""
    environment_s: float | None = None
    """The longest time, in seconds, that one of its containers built its environment; None if none had to."""
    rests_until: int = 0
    """It is not resized before this time, because members of it failed."""
    revision: int = 1
    """The revision of the spec with which it was started; 1 is the submitted one."""
    founders: list[int] = []
    """The slots of a live app's first membership; none for others, whose members never change."""

    @property
    def released(self) -> bool:
        return self.released_at > 0

    def stop_began(self, stopped_at: int) -> int:
        """Return when the generation before, which had ended by `stopped_at`, was asked to stop (log times)."""
        if not self.prepare_until:
            return self.decided_at
        return max(self.decided_at, min(self.prepared_at or self.prepare_until, stopped_at))

    @property
    def ended(self) -> bool:
        """None of its containers may still run: never released, or every container has exited."""
        if self.released_at <= 0:
            return True
        if self.exited != len(self.containers) or self.leaving:
            return False
        change = self.change
        if change is None or not change.released_at:
            return True
        return all(container.state == "exited" for container in change.newcomers.values())

    @property
    def settled(self) -> bool:
        """Runs as decided: all members are up, and none joins or leaves."""
        settles = self.running == len(self.containers) and self.change is None and not self.leaving
        return settles and not self.accused

    @property
    def planned(self) -> dict[int, Container]:
        """By slot, its target containers: the target membership of a live adjustment, otherwise its members."""
        change = self.change
        if change is None:
            return self.containers
        stay = {slot: self.containers[slot] for slot in change.stay if slot in self.containers}
        return {**stay, **change.newcomers}

    def all_containers(self) -> Iterator[Container]:
        """Members, and other containers that may run: released new members, and those that leave."""
        yield from self.containers.values()
        if self.change is not None and self.change.released_at:
            yield from self.change.newcomers.values()
        yield from self.leaving.values()

    def find(self, slot: int) -> Container | None:
        """Return the container in that slot, if it may run or has ended as a member."""
        container = self.containers.get(slot) or self.leaving.get(slot)
        if container is None and self.change is not None and self.change.released_at:
            return self.change.newcomers.get(slot)
        return container

    def by_node(self) -> dict[str, int]:
        """How many containers it is to have on each node, sorted by node."""
        counts: dict[str, int] = {}
        for container in self.planned.values():
            counts[container.node] = counts.get(container.node, 0) + 1
        return dict(sorted(counts.items()))
