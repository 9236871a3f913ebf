"""From a policy's counts to slots and ports, and live changes that would wait for each other.
other.

Every container needs a port, and the first slot's node one more for the rendezvous.  Ports are counted like room: a
node serves no more containers than its range allows, planned containers and those that may still run are counted
separately, and a generation is not released before its ports are certainly free (`dorm.core.next_round`).  Unused ports
are assigned first.

A policy sees one number for each node (`PortRoom.most`): it can't know which node will hold the first slot of an app,
and so needs the port for the rendezvous.  So one port is reserved for each app, up to half of the range, since an app
has no more rendezvous on a node than containers.  Only if a node already serves more than that can an answer need more
ports than exist: then `arrange` shrinks apps that change anyway, down to their n_min, and finally leaves out those
without a port.  An app that is left out holds nothing and blocks no other app.

A member of a live app leaves when the app trains without it, and where it moves, its successor has to train first.  So
two apps that each move into the other's room would both keep what they have, and neither could be changed again.  One
of them is restarted instead: a restart frees its room first (`crossing`).
"""

from __future__ import annotations

from collections import Counter
from itertools import count as counting
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm.core.invariants import may_run
from dorm.core.preparing import prepare_s
from dorm.core.round_size import LARGEST_CHANGES, size
from dorm.policies import answer as answers
from dorm.policies import integer
from dorm.policies.problem import PortRoom, Problem
from events.kinds import Placed, Resize, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from dorm.core.state import App, Container, Generation, Node, State
    from dorm.policies.problem import Allocation, AppDemand
    from events.kinds import Adjustment, LiveReason


# --- live changes that would wait for each other ----------------------------------------------------------------------


def crossing(state: State, changes: list[Resize]) -> str | None:
    """Return a live app of these changes that moves into room which others leave only once its own is free: all of them
    would wait forever, because members leave only once their successors train.  A restart of it frees its room first.
    None if every change comes to its end."""
    moves = _moves(state, changes)
    decided = {change.app for change in changes if change.adjustment == "live"}
    if len(moves) < 2 or not decided & moves.keys():
        return None
    free = _free(state, {change.app: change for change in changes}, moves)
    while moves:
        app_id = next((app_id for app_id, move in sorted(moves.items()) if _has_room(free, move)), None)
        if app_id is None:
            stuck = decided & moves.keys()
            return min(stuck, key=lambda app_id: (sum(moves[app_id].joining.values()), app_id)) if stuck else None
        move = moves.pop(app_id)
        for nodes, amounts, sign in ((move.joining, move.takes, -1), (move.leaving, move.gives, 1)):
            for node, count in nodes.items():
                for kind, amount in amounts.items() if node in free else ():
                    free[node][kind] += sign * count * amount
    return None


def _free(state: State, changes: Mapping[str, Resize], moves: Collection[str]) -> dict[str, Counter[str]]:
    """Return the free room on each node once all members have left that wait for no room."""
    free = {node.id: Counter(node.capacity) for node in state.nodes.values()}
    for app in state.live_apps():
        generation, change = app.current, changes.get(app.id)
        if generation is None or not generation.released or app.cancel_requested:
            continue
        if change is not None and change.adjustment != "live":
            continue
        stay = None if change is None or app.id in moves else {placed.slot for placed in change.placement}
        for slot, container in generation.containers.items():
            if container.state != "exited" and container.node in free and (stay is None or slot in stay):
                free[container.node].subtract(app.needs(generation))
    return free


class _Move(NamedTuple):
    """A live change with newcomers and leavers: how many on each node, and what each takes and gives back."""

    joining: Counter[str]
    takes: Mapping[str, int]
    leaving: Counter[str]
    gives: Mapping[str, int]


def _moves(state: State, changes: list[Resize]) -> dict[str, _Move]:
    """Return the live changes that wait for room and keep some, of this decision and of earlier ones, by app."""
    moves = {}
    by_app = {change.app: change for change in changes}
    for app in state.live_apps():
        generation, change = app.current, by_app.get(app.id)
        if generation is None or app.spec.elastic != "live":
            continue
        if change is not None and change.adjustment == "live":
            joining = Counter(member.node for member in change.placement if member.slot not in generation.containers)
            stay = {member.slot for member in change.placement}
        elif change is None and generation.change is not None and not generation.change.released_at:
            joining = Counter(newcomer.node for newcomer in generation.change.newcomers.values())
            stay = set(generation.change.stay)
        else:
            continue
        leaving = Counter(
            member.node
            for slot, member in generation.containers.items()
            if slot not in stay and member.state != "exited"
        )
        if joining and leaving:
            moves[app.id] = _Move(joining, app.demand, leaving, app.needs(generation))
    return moves


def _has_room(free: Mapping[str, Mapping[str, int]], move: _Move) -> bool:
    return all(
        free[node].get(kind, 0) >= amount * count
        for node, count in move.joining.items()
        if node in free
        for kind, amount in move.takes.items()
    )


# --- slots and ports --------------------------------------------------------------------------------------------------

MOST_QUESTIONS = 8
"""Number of runs of a policy for one decision because of ports; the last answer changes no app that can't be placed."""


class Arranged(NamedTuple):
    """A policy's answer that has enough ports."""

    answer: Allocation
    changes: list[Resize]
    reasons: dict[str, Waiting]
    """Reasons of apps that have less because of ports, if the answer itself does not state it."""


def with_ports(state: State, problem: Problem) -> Problem:
    """Return the problem with the ports of each node.

    Never fewer than are in use now: the arrival of an app must not stop a running one.  Otherwise the number follows
    from the range and the number of apps, not from their places: a policy that is free to move all of them would
    oscillate if its answer changed the problem."""
    ranges = _shares_of_ranges(state)
    held: dict[str, int] = {}
    for app in problem.apps:
        for node, count in app.current.items():
            held[node] = held.get(node, 0) + count
    nodes = []
    for room in problem.nodes:
        size, (low, high) = ranges.get(room.id, 0), state.nodes[room.id].ports
        most = max(size - len(problem.apps), size // 2, held.get(room.id, 0))
        nodes.append(msgspec.structs.replace(room, ports=PortRoom(low, high, most)))
    return msgspec.structs.replace(problem, nodes=tuple(nodes))


def arrange(
    state: State,
    problem: Problem,
    ask: Callable[[Problem], Allocation],
    *,
    kept: Collection[str] = (),
    stopped: Collection[str] = (),
) -> Arranged:
    """Run a policy until there are enough ports for its answer.

    `problem` has ports (`with_ports`).  The answer has all its apps, including those that had to be left out.  Apps that are
    `kept` hold room, and nothing is decided about them.  Those that are `stopped` by the same decision for another reason than
    the answer make way."""
    reasons: dict[str, Waiting] = {}
    reduced = problem
    for number in range(MOST_QUESTIONS):
        answer = ask(reduced)
        draft = _Draft(state, reduced, answer, kept, stopped)
        while draft.short and draft.shrink():
            draft.place()
        if not draft.unplaced:
            break
        reduced = _without(reduced, draft.unplaced, kept, everybody=number == MOST_QUESTIONS - 2)
        reasons.update({app: _waiting(state, nodes) for app, nodes in sorted(draft.unplaced.items())})
    return Arranged(_whole(draft.answer, problem, reduced, reasons), draft.changes, {**draft.reasons, **reasons})


def _whole(answer: Allocation, problem: Problem, reduced: Problem, reasons: dict[str, Waiting]) -> Allocation:
    """Return the answer with the apps that the last problem or its answer left out: they wait, the former for ports."""
    left_out = [app for app in problem.apps if app.id not in answer.counts]
    if not left_out:
        return answer
    counts: dict[str, dict[str, int]] = {**answer.counts, **{app.id: {} for app in left_out}}
    in_question = {app.id for app in reduced.apps}
    for app in left_out:
        if app.id in in_question:
            continue
        reasons.setdefault(app.id, Waiting(code="ports", text="no answer was found for which there are enough ports"))
    return msgspec.structs.replace(
        answer,
        counts=dict(sorted(counts.items())),
        shortage={**answer.shortage, **{app.id: app.n_min for app in left_out}},
    )


def _waiting(state: State, nodes: Mapping[str, int]) -> Waiting:
    name = min(nodes)
    low, high = state.nodes[name].ports
    return Waiting(code="ports", text=f"node {name} has no free port left in its range {low}-{high}")


def _without(problem: Problem, unplaced: Mapping[str, object], kept: Collection[str], *, everybody: bool) -> Problem:
    """Return the problem with unplaced apps pinned as they are, or left out if they have nothing.  With `everybody` this
    applies to all apps, and nothing changes."""
    apps = []
    for app in problem.apps:
        if app.id in kept or (not everybody and app.id not in unplaced):
            apps.append(app)
        elif app.holds:
            apps.append(msgspec.structs.replace(app, pinned=True))
    return msgspec.structs.replace(problem, apps=tuple(apps))


def _shares_of_ranges(state: State) -> dict[str, int]:
    """Return how many ports each node has. Ranges of nodes on one address should be disjoint; if they overlap, the
    common part is divided among them."""
    by_address: dict[str, list[Node]] = {}
    for node in sorted(state.nodes.values(), key=lambda node: node.id):
        if node.condition == "up":
            by_address.setdefault(node.address, []).append(node)
    shares: dict[str, int] = {}
    for nodes in by_address.values():
        edges = sorted({edge for node in nodes for edge in (node.ports[0], node.ports[1] + 1)})
        for low, high in pairwise(edges):
            here = [node.id for node in nodes if node.ports[0] <= low <= node.ports[1]]
            for place, name in enumerate(here):
                each, rest = divmod(high - low, len(here))
                shares[name] = shares.get(name, 0) + each + (place < rest)
    return shares


class _Draft:
    """The changes of one answer that have ports."""

    def __init__(
        self, state: State, problem: Problem, answer: Allocation, kept: Collection[str], stopped: Collection[str]
    ) -> None:
        self.state, self.problem, self.answer, self.kept, self.stopped = state, problem, answer, kept, stopped
        self.changes: list[Resize] = []
        self.reasons: dict[str, Waiting] = {}
        self.short: dict[str, int] = {}
        """Nodes, with how many ports they lack for this answer."""
        self.unplaced: dict[str, dict[str, int]] = {}
        """Apps that can't be placed, with the nodes on which they lack ports."""
        self.crossing: set[str] = set()
        """Live apps that are restarted, because their newcomers and those of others would wait for each other's room."""
        self.place()

    def place(self) -> None:
        """Keep slots on their nodes if possible; new ones take the lowest free numbers."""
        changing = [app for app in sorted(self.problem.apps, key=lambda app: app.id) if self._changes(app)]
        self._place(changing, lend=True)
        while (stuck := crossing(self.state, self.changes)) is not None:
            self.crossing.add(stuck)
            self._place(changing, lend=True)
        if sum(map(size, self.changes)) > LARGEST_CHANGES:
            # Some of these changes come later (`dorm.core.round_size`), so no app counts on ports that another frees.
            self._place(changing, lend=False)

    def _place(self, changing: list[AppDemand], *, lend: bool) -> None:
        stay: dict[str, dict[int, Container]] = {app: {} for app in self.stopped}
        stay.update({app.id: self._stay(app) for app in changing})
        ports = _Ports(self.state, stay, lend=lend)
        self.changes, self.short, self.unplaced = [], {}, {}
        for demand in changing:
            app, wanted = self.state.apps[demand.id], self.answer.counts.get(demand.id, {})
            live = self._is_live(app, wanted)
            given = ports.place(app, _slots(app.current, wanted, live=live), stay[app.id])
            if isinstance(given, dict):
                self.unplaced[app.id] = given
                for node, missing in given.items():
                    self.short[node] = self.short.get(node, 0) + missing
                continue
            placement, master_port = given
            adjustment = "live" if live else _adjustment(demand, wanted)
            self.changes.append(
                Resize(
                    app=app.id,
                    from_generation=app.generation,
                    to_generation=app.generation + (not live),
                    placement=placement,
                    adjustment=adjustment,
                    master_port=master_port,
                    membership=app.current.announced + 1 if live and app.current is not None else 0,
                    why=_why(app, wanted) if demand.holds and wanted and app.id not in self.crossing else "",
                    prepare_s=prepare_s(self.state, app, placement) if adjustment == "restart" else 0.0,
                )
            )

    def _stay(self, demand: AppDemand) -> dict[int, Container]:
        """Return the members of a live app that stay in this answer; none for one that is restarted."""
        app, wanted = self.state.apps[demand.id], self.answer.counts.get(demand.id, {})
        if app.current is None or not self._is_live(app, wanted):
            return {}
        containers = app.current.containers
        return {slot: containers[slot] for slot, _ in _kept(app.current, wanted)}

    def _is_live(self, app: App, wanted: dict[str, int]) -> bool:
        return app.id not in self.crossing and _why(app, wanted) == "members_stay"

    def _changes(self, app: AppDemand) -> bool:
        same = self.answer.counts.get(app.id, {}) == app.holds
        return not app.pinned and app.id not in self.kept and (app.again or not same)

    def shrink(self) -> bool:
        """Remove as many containers as ports are missing from apps that change anyway and stay above their n_min, largest apps
        first.  Return False if there are none."""
        counts = {app: dict(nodes) for app, nodes in self.answer.counts.items()}
        changing = [app for app in self.problem.apps if self._changes(app)]
        shrunk: dict[str, dict[str, int]] = {}
        for node, missing in self.short.items():
            while missing > 0:
                able = [
                    app
                    for app in changing
                    if counts[app.id].get(node, 0) >= app.gang
                    and sum(counts[app.id].values()) - app.gang >= app.n_min
                    and not self._back_to_now(app, counts[app.id], node)
                ]
                if not able:
                    break
                app = min(able, key=lambda app: (-counts[app.id][node], app.id))
                own = counts[app.id]
                own[node] -= app.gang
                if not own[node]:
                    del own[node]
                missing -= app.gang
                shrunk.setdefault(app.id, {})[node] = 1
        if not shrunk:
            return False
        self._answer_is(counts)
        self.reasons.update({app: _waiting(self.state, nodes) for app, nodes in sorted(shrunk.items())})
        return True

    @staticmethod
    def _back_to_now(app: AppDemand, counts: dict[str, int], node: str) -> bool:
        """Return whether one container less equals what it has now: its containers would count as staying, and so would
        its ports."""
        return {**counts, node: counts[node] - app.gang} == app.holds

    def _answer_is(self, counts: dict[str, dict[str, int]]) -> None:
        """Replace the answer by one with these counts and matching figures."""
        instance, was = integer.read(self.problem), self.answer
        column = {node: j for j, node in enumerate(instance.nodes)}
        rows = [
            row
            if app.pinned
            else {column[node]: count // max(app.gang, 1) for node, count in counts.get(app.id, {}).items()}
            for app, row in zip(instance.apps, instance.rows, strict=True)
        ]
        self.answer = answers.assemble(
            instance,
            rows,
            reasons=was.reasons,
            fairness_budget=was.fairness_budget,
            excess=was.excess,
            overhead_budget=was.overhead_budget,
            status="near" if was.status == "optimal" else was.status,
            bound=was.bound,
            change_cost=was.change_cost,
        )


def _adjustment(demand: AppDemand, wanted: dict[str, int]) -> Adjustment:
    if not wanted:
        return "stop"
    return "restart" if demand.holds else "start"


def _why(app: App, wanted: dict[str, int]) -> LiveReason:
    """Return why an app that runs is resized live or restarted."""
    current = app.current
    if app.spec.elastic != "live" or current is None or not current.released or app.restart_wanted:
        return ""
    if app.missed_live:
        return "missed_deadline"
    return "members_stay" if _kept(current, wanted) else "no_member_stays"


def _kept(current: Generation | None, wanted: dict[str, int]) -> list[tuple[int, str]]:
    """Return (slot, node) for each container that can stay, lowest slots first."""
    kept: list[tuple[int, str]] = []
    left = dict(wanted)
    for slot, container in sorted(current.containers.items()) if current else []:
        if left.get(container.node, 0) > 0:
            left[container.node] -= 1
            kept.append((slot, container.node))
    return kept


def _slots(current: Generation | None, wanted: dict[str, int], *, live: bool) -> list[tuple[int, str]]:
    """Return (slot, node) for each container, by slot.  Newcomers of a live adjustment get slots that the generation never
    had."""
    kept = _kept(current, wanted)
    left = dict(wanted)
    for _, node in kept:
        left[node] -= 1
    used = {slot for slot, _ in kept}
    first = current.next_slot if live and current is not None else 0
    free = (slot for slot in counting(first) if slot not in used)
    new = [(next(free), node) for node in sorted(left) for _ in range(left[node])]
    return sorted(kept + new)


def restarted(state: State, app: App, slots: list[tuple[int, str]]) -> tuple[list[Placed], int] | None:
    """Return slots and nodes with their ports and one for the rendezvous, for a generation that replaces the app's
    current one; None if there are not enough ports."""
    given = _Ports(state, {app.id: {}}, lend=True).place(app, slots, {})
    return None if isinstance(given, dict) else given


def all_ports(generation: Generation) -> Iterator[tuple[str, int]]:
    """Yield address and port of each container that it has or is to have, and of the rendezvous."""
    containers = {**generation.containers, **generation.planned}
    for slot in sorted(containers):
        yield containers[slot].address, containers[slot].port
    if generation.master_port and containers:
        yield generation.master_address, generation.master_port


def held_ports(generation: Generation) -> Iterator[tuple[str, int]]:
    """Yield ports that may still be in use: of containers that have not exited, and the rendezvous while one has not."""
    for container in generation.all_containers():
        if container.state != "exited":
            yield container.address, container.port
    if generation.master_port and not generation.ended:
        yield generation.master_address, generation.master_port


class _Ports:
    """Ports that this decision may assign, by address, which several nodes may share."""

    def __init__(self, state: State, changing: Mapping[str, Mapping[int, Container]], *, lend: bool) -> None:
        """`changing` has the members that stay of each app that changes, none of one that is restarted.  Generations of
        other changing apps make way, as do those of apps that ended, failed or are cancelled.  Without `lend`, the ports of
        the former go to their own apps only."""
        self._kept_for = frozenset[str]() if lend else frozenset(changing)
        self._nodes = state.nodes
        self._cursor = {node.id: node.port_cursor for node in state.nodes.values()}
        self._taken: dict[tuple[str, int], None] = {}
        self._leaving: dict[tuple[str, int], str] = {}
        """Ports that are free once the generation of that app has ended."""
        for app in state.apps.values():
            for generation in app.generations.values():
                stays = generation is app.current and not app.ended and not app.cancel_requested
                if stays and app.id not in changing:
                    self._taken.update(dict.fromkeys(all_ports(generation)))
                elif may_run(generation):
                    self._leaving.update(dict.fromkeys(all_ports(generation), app.id))
                    if stays and (stay := changing.get(app.id)):
                        rendezvous = (generation.master_address, generation.master_port)
                        kept = [*((container.address, container.port) for container in stay.values()), rendezvous]
                        self._taken.update(dict.fromkeys(kept))
                leaving = ((container.address, container.port) for container in generation.leaving.values())
                self._leaving.update(dict.fromkeys(leaving, app.id))

    def place(
        self, app: App, slots: list[tuple[int, str]], stay: Mapping[int, Container]
    ) -> tuple[list[Placed], int] | dict[str, int]:
        """Assign a port for each slot and one for the rendezvous on the first slot's node (0 without slots); or return how
        many ports its nodes lack, and assign none.  Members that `stay` keep theirs, and with them the rendezvous."""
        cursor, given = dict(self._cursor), []
        missing: dict[str, int] = {}
        new = [(slot, node) for slot, node in slots if slot not in stay]
        for node in [*(node for _, node in new), *([] if stay else [node for _, node in slots[:1]])]:
            port = self._take(self._nodes[node], app.id)
            if port is None:
                missing[node] = missing.get(node, 0) + 1
            given.append((self._nodes[node].address, port))
        if missing:
            for address, port in given:
                if port is not None:
                    del self._taken[address, port]
            self._cursor = cursor
            return missing
        ports = [port for _, port in given if port is not None]
        placement = [
            Placed(slot=slot, node=node, address=self._nodes[node].address, port=port)
            for (slot, node), port in zip(new, ports, strict=False)
        ]
        if not stay or app.current is None:
            return placement, ports[-1] if slots else 0
        kept = [
            Placed(slot=member.slot, node=member.node, address=member.address, port=member.port)
            for member in stay.values()
        ]
        return sorted(kept + placement, key=lambda placed: placed.slot), app.current.master_port

    def _take(self, node: Node, app: str) -> int | None:
        """Return the next port of this node after the last one assigned: an unused port, otherwise one that the app's
        own last generation frees, otherwise one that another's does; None if all are in use."""
        low, high = node.ports
        size = high - low + 1
        start = self._cursor[node.id]
        start = start if low <= start <= high else high
        second: dict[bool, int] = {}
        freed = None
        for step in range(1, size + 1):
            port = low + (start - low + step) % size
            if (node.address, port) in self._taken:
                continue
            leaving = self._leaving.get((node.address, port))
            if leaving is not None and leaving != app and leaving in self._kept_for:
                continue
            if leaving is None:
                freed = port
                break
            second.setdefault(leaving == app, port)
        if freed is None:
            freed = second.get(True, second.get(False))
        if freed is not None:
            self._taken[node.address, freed] = None
            self._cursor[node.id] = freed
        return freed
