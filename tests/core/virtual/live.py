"""Live apps of the virtual cluster: containers that follow their announcements, by the contract with `elastic: live`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from events import kinds as k

if TYPE_CHECKING:
    from tests.core.virtual.node import Toy, VirtualNode
    from tests.core.virtual.world import World

_Group = tuple[str, int]
_Members = dict[int, tuple["VirtualNode", "Toy"]]


class LiveApps:
    """What the members of all live apps do, as their library would."""

    def __init__(self, world: World, share: float) -> None:
        self.world = world
        self.share = share
        """How many of the submitted apps declare live resizing."""
        self.trains: dict[_Group, tuple[int, list[int]]] = {}
        """By app and generation, the membership that trains and its slots."""
        self.changes = 0
        self.deaths = 0

    def words(self) -> dict[str, Any]:
        """Return the words of a spec, now and then."""
        if not self.share or self.world.chance.random() >= self.share:
            return {}
        return {"elastic": "live"}

    def step(self) -> None:
        """Every member looks at its file and at its peers."""
        groups: dict[_Group, _Members] = {}
        for node in self.world.nodes:
            for key, toy in sorted(node.engine.items()):
                if toy.state == "running" and toy.file[0]:
                    groups.setdefault(key[:2], {})[key.slot] = node, toy
        for group in [group for group in self.trains if group not in groups]:
            del self.trains[group]
        for group, members in sorted(groups.items()):
            if not self._refuses(group):
                self._follow(group, members)

    def _refuses(self, group: _Group) -> bool:
        """Some apps declare live resizing and do not follow."""
        return self.world.faults > 0 and sum(map(ord, group[0])) % 5 == 0

    def _follow(self, group: _Group, members: _Members) -> None:
        able = {slot for slot, (_, toy) in members.items() if not toy.hangs and not toy.stopping}
        number, slots = self.trains.get(group, (0, []))
        lost = [slot for slot in slots if slot not in able]
        slots = [slot for slot in slots if slot in able]
        if number and lost:
            self.deaths += 1
            if not slots:
                del self.trains[group]
                return
            self.trains[group] = number, slots
            self._say(group, members, number, slots, change="death", lost=lost)
        told = sorted({toy.file for _, toy in members.values() if toy.file[0] > number}, reverse=True)
        for membership, wanted in told:
            if all(slot in able and members[slot][1].file[0] == membership for slot in wanted):
                self._switch(group, members, membership, list(wanted), before=slots)
                return

    def _switch(self, group: _Group, members: _Members, number: int, slots: list[int], *, before: list[int]) -> None:
        self.trains[group] = number, slots
        self.changes += bool(before)
        grows, shrinks = set(slots) - set(before), set(before) - set(slots)
        change = "start" if not before else "move" if grows and shrinks else "grow" if grows else "shrink"
        self._say(group, members, number, slots, change=change)
        for slot in sorted(shrinks):
            _, toy = members[slot]
            if self.world.chance.random() < 0.8:
                toy.end(0, self.world.now)
                self.world.finished.add(toy.key)
            else:
                toy.life = 10**6  # It does not end by itself, as it should.

    def _say(self, group: _Group, members: _Members, number: int, slots: list[int], **words: Any) -> None:
        node, toy = members[min(slots)]
        app, generation = group
        id = f"{app}.{generation}.{number}.{words['change']}.{self.world.now}.{len(node.lines)}"
        step = 100 - min(toy.life, 100)
        node.lines.append(
            k.MembershipChanged(
                id=id,
                app=app,
                generation=generation,
                membership=number,
                step=step,
                members=slots,
                pause_s=0.01,
                **words,
            )
        )
