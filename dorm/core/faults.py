"""Whose fault a failure is: the app's, its node's, or open; and what follows for both.

A failure at the start of a container, or shortly after it, says something about a pair: this app on this node.  The program
may be broken, or the node may lack what the program needs, and one failure does not tell which.  The fold therefore keeps
the recent failures of each pair (`PairFailure`), bounded, with the app and with the node.  Three rules follow from them:

    app      it failed on more than k different nodes, or on each node that could take it, or more
             than `MOST_OPEN` times in all.  A node on which another app that needs no less was started later and ran well
             counts twice.  The app's open failures count against its retries now
    node     it is suspect already.  The failure costs the app no retry
    open     everything else.  The app is tried on another node, which costs it no retry yet

**Avoided pairs.** An app is not placed again on a node where it failed within t, as long as other nodes could hold n_min of
it.  If it had run well there before, another size or a passing fault may explain the first failure, so that one does not
count here.  Policies know only labels and requirements: the node has the label `avoided/APP`, and the app must not have it
there.

**Suspect nodes.** A node on which k different apps failed within t, while anything runs on other nodes, is suspect
(`NodeSuspected`).  It takes nothing new; what runs there stays, and apps that run there are not resized.  At most a third of
the nodes (but one, of two or more) are suspect by these rules, so a broken image can't stop a cluster.  The node returns
(`NodeTrusted`)

    probe      when one app, which needs no less than those that failed, was started there and ran well.  The probe is the
               first waiting app that fits there and whose spec permits retries, of those that have failed nowhere if
               there is one, `FIRST_PROBE_S` after the node became
               suspect; each probe that fails, by whatever cause, doubles the pause, and so does each return before.  If
               there is no such app for `LONGEST_PROBE_S`, one that needs less will do.  A new start of the node's agent
               makes the next probe due at once
    evidence   when so many of these apps turn out to be broken that fewer than k are left
    operator   when an operator says so (`NodeTrustRequested`), or turns the rule off

After a return by a probe, the node is on trial for twice the time: the first failure makes it suspect again.  Half of its
returns are forgotten after each `FORGIVEN` times t for which it then runs apps well.

**Watched nodes.** While one more failure would make a node suspect, it takes one app at a time that has not run well there,
so that not many start at once where they would fail: the first that waits and for which there is room.  This does not limit
what starts before the first failures are known: apps that are placed on the node until then may all fail there, each once,
which costs none of them a retry.  To place only k of them at a time would hold up each start on a node that is new.

**What counts.**  A failure counts if its app has run well elsewhere since (confirmed), or if no app that needs no less was
started there later and ran well (disproved).  If that was an app of another owner, confirmed failures count only from two
owners, so nobody makes a node suspect with apps that are written to fail there.  A node is suspect only if it has more than
twice as many failures as others have on average: apps that fail now and then do so on all nodes.

k is `suspect_after`, t is `suspect_within` of the cluster's settings.  Everything follows from the log alone.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from dorm.core.app import PairFailure
from dorm.core.gates import closed, held_back, moment
from dorm.core.offers import labels_of, owner_of, require_of, word
from dorm.core.sizes import bounds
from dorm.core.state import Suspect
from dorm.policies.matching import satisfies
from events.kinds import AppFailed, Failure, NodeSuspected, NodeTrusted
from events.limits import clipped
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from dorm.core.state import App, Container, Generation, Node, State
    from events.kinds import ContainerExited, Event, GenerationFailed, MembersLost


OF_A_PAIR = ("exit", "command", "spec", "image", "device", "unknown", "start", "stalled")
"""Causes of failures that may be a node's.  The others have rules of their own (`dorm.core.failures`)."""
SHORT_S = 60
"""Running time after which a container had what it needs to start."""
FIRST_PROBE_S = 1800
"""Pause before the first probe: with k failures before and one probe within the hour,
a broken node wastes at most k + 1 tries an hour."""
LONGEST_PROBE_S = 86_400
FORGIVEN = 24
"""Multiple of the time t after which, while a node runs apps well, half of its returns are forgotten: a day by default."""
NO_ANSWER = ("lost", "stopped")
"""Causes of failures that say nothing about a probe: its node was lost, or it was stopped from outside."""
MOST_PAIRS = 32
"""Number of apps that a node remembers, and of nodes that an app does."""
MOST_OPEN = 10
"""Number of failures of an app that may be open, however long ago: after long pauses, no earlier one is recent."""
MOST_NAMED = 4
OUTLIER = 2
"""Multiple of the others' average number of failures beyond which a node is suspect."""
PART = 3
"""Number of nodes of which at most one is suspect by rule."""
SUSPECT = "suspect"
WATCHED = "watched"
_AVOIDED = "avoided/"
_PROBE = "probe/"


class Fault(msgspec.Struct, frozen=True):
    """The first failure: the other containers of the generation only lost their peer."""

    failure: Failure
    reason: str
    """Reason in words."""
    worked_until: int
    """Time (UTC ns) at which the generation last worked as far as known."""
    exit_code: int | None = None
    node: str = ""
    """Node where it failed; "" if it is not one node's."""
    ran_s: float = 0.0
    """Running time of the container."""
    by_node: bool = False
    """Whether the container's node could not start it, for a reason of its own."""
    newcomer: bool = False
    """Whether it was to join a live app that has no member on this node, so what the others have done says nothing here."""


class Verdict(NamedTuple):
    """Whose fault a failure is."""

    fault: Literal["", "app", "node", "open"]
    """Whose fault it is; "" for a failure that says nothing about a pair, or that no other node could disprove."""
    why: str = ""
    """Reason as the end of the failure's reason."""
    open_before: int = 0
    """Earlier failures that were open and now count against the app."""


# --- what is known ------------------------------------------------------------------------------------------------------


def needs_of(app: App) -> list[str]:
    """Return what an app needs of a node, as names: resources, volumes, secrets, and an environment."""
    spec = app.spec
    needs = [name for name, amount in app.demand.items() if amount > 0]
    needs += [f"volume/{name}" for name in spec.volumes]
    needs += ["secrets"] if spec.secrets else []
    needs += ["environment"] if spec.needs_environment else []
    return sorted(needs)


def is_of_a_pair(app: App, generation: Generation, fault: Fault) -> bool:
    """Return whether a failure says something about the pair of app and node."""
    fresh = fault.newcomer or not generation.worked
    return bool(fault.node) and fault.failure in OF_A_PAIR and fresh and fault.ran_s < SHORT_S


def note_failure(state: State, event: GenerationFailed | MembersLost | AppFailed) -> tuple[str, ...]:
    """Fold a failure: remember the pair, or clear the nodes of an app that is broken.  Return the ids of these nodes."""
    app, node = state.apps.get(event.app), state.nodes.get(event.node)
    cleared: tuple[str, ...] = ()
    if app is None:
        return cleared
    if not isinstance(event, AppFailed) and event.anew:
        app.failed_on = {}
    if node is not None and event.failure not in NO_ANSWER:
        _note_failed_probe(state, app, node)
    if not event.fault:
        return cleared
    if event.fault == "app":
        cleared = tuple(app.failed_on)
        _clear_nodes(state, app)
    if node is None:
        return cleared
    before = app.failed_on.get(node.id)
    pair = PairFailure(
        app=app.id,
        node=node.id,
        generation=event.generation,
        failure=event.failure,
        reason=clipped(event.reason),
        at=state.time,
        tries=(before.tries if before is not None else 0) + 1,
        proven=node.id in app.ran_well_on,
        needs=needs_of(app),
    )
    app.failed_on[node.id] = pair
    app.ran_well_on = [name for name in app.ran_well_on if name != node.id]
    _bound(app.failed_on)
    if event.fault != "app":
        node.failed[app.id] = pair
        _bound(node.failed)
    return cleared


def _note_failed_probe(state: State, app: App, node: Node) -> None:
    """Whatever it failed by, it has not shown that the node works, and the next one would not either."""
    if node.suspect is not None and node.suspect.probe == app.id:
        failed = node.suspect.failed_probes + 1
        node.suspect = msgspec.structs.replace(
            node.suspect,
            failed_probes=failed,
            probe="",
            probe_at=state.time + _pause_s(node.relapses + failed) * SECOND,
        )


def _pause_s(doublings: int) -> int:
    """Return the pause before a probe."""
    return min(FIRST_PROBE_S << min(doublings, 16), LONGEST_PROBE_S)


def _bound(pairs: dict[str, PairFailure]) -> None:
    while len(pairs) > MOST_PAIRS:
        del pairs[min(pairs, key=lambda name: (pairs[name].at, name))]


def _clear_nodes(state: State, app: App) -> None:
    """The app is broken: its failures say nothing about nodes.  If it was to probe one, the next probe is due at once."""
    for name, pair in app.failed_on.items():
        node = state.nodes.get(name)
        if node is None:
            continue
        node.failed.pop(app.id, None)
        suspect = node.suspect
        if suspect is not None and app.id in suspect.apps:
            listed = zip(suspect.apps, suspect.failures, strict=False)
            left = [(name, why) for name, why in listed if name != app.id]
            apps, failures = [name for name, _ in left], [why for _, why in left]
            node.suspect = msgspec.structs.replace(suspect, apps=apps, failures=failures)
        elif suspect is not None and suspect.failed_probes and pair.at > suspect.since:
            node.suspect = msgspec.structs.replace(
                suspect, failed_probes=suspect.failed_probes - 1, probe_at=min(suspect.probe_at, state.time)
            )


def forget_failures(app: App) -> None:
    """Its owner has changed it, so its earlier failures say nothing any more."""
    app.failed_on = {}


def note_ran_well(state: State, app: App, container: Container) -> None:
    """Fold a container that ran well: its node has what this app needs, and all others that need no more."""
    node = state.nodes.get(container.node)
    if node is None:
        return
    app.failed_on.pop(node.id, None)
    for name in app.failed_on:
        other = state.nodes.get(name)
        if other is not None and app.id in other.failed:
            other.failed[app.id] = msgspec.structs.replace(other.failed[app.id], confirmed=True)
    app.ran_well_on = [*(name for name in app.ran_well_on if name != node.id), node.id][-MOST_PAIRS:]
    needs = dict.fromkeys(needs_of(app))
    if node.suspect is not None:
        if container.started_at >= node.suspect.since and node.suspect.probe == app.id:
            node.proven_at = state.time
        return
    node.proven_at = state.time
    node.failed.pop(app.id, None)
    for name, pair in node.failed.items():
        if pair.at <= container.started_at and all(need in needs for need in pair.needs):
            outvoted = pair.outvoted or _owner(state, name) != owner_of(app)
            node.failed[name] = msgspec.structs.replace(pair, disproved=True, outvoted=outvoted)


def _owner(state: State, app_id: str) -> str:
    app = state.apps.get(app_id)
    return owner_of(app) if app is not None else ""


def ran_well(container: Container) -> bool:
    """Return whether a container that has ended shows that its node works."""
    done = container.exit_code == 0 and not container.asked and container.reason == "exit"
    return bool(container.started_at) and (done or container.ran_ns >= SHORT_S * SECOND)


def note_brief_run(state: State, container: Container, event: ContainerExited) -> None:
    """Fold an end that was reported late, because the node was cut off or the log was away: how long the container ran
    follows from its node's clock.  A clock that was set back meanwhile shows nothing."""
    by_log, by_node = state.time - container.started_at, event.exited_at - event.started_at
    if container.started_at and event.started_at and 0 <= by_node < SHORT_S * SECOND <= by_log:
        container.brief_ns = by_node


# --- whose fault --------------------------------------------------------------------------------------------------------


def verdict(state: State, app: App, generation: Generation, fault: Fault, now: int) -> Verdict:
    """Return whose fault a failure is at `now` (UTC ns)."""
    node = state.nodes.get(fault.node)
    if node is None or not is_of_a_pair(app, generation, fault):
        return Verdict("")
    if node.suspect is not None:
        return Verdict("node", f"; {node.id} is suspect, so this is not the app's fault")
    tried = {name: pair for name, pair in app.failed_on.items() if _counts_against(state, app, pair, now)}
    before = sum(pair.tries for pair in tried.values())
    names = list(dict.fromkeys([*tried, node.id]))
    disproved = sum(_is_disproved(state, pair) for pair in tried.values())
    if len(names) + disproved > _most_nodes(state):
        others = ", where others ran well" if disproved else ""
        return Verdict("app", f"; it failed on {_listed(names)}{others}, so this is the app's own fault", before)
    if not _could_run_without(state, app, {**tried, node.id: None}):
        if len(names) == 1:
            return Verdict("")
        return Verdict("app", f"; it failed on {_listed(names)}, and no other node could take it", before)
    if (tries := _tries(state, app) + 1) > MOST_OPEN:
        return Verdict("app", f"; it failed {tries} times on {_listed(list({**app.failed_on, node.id: None}))}", before)
    if node.id in app.ran_well_on:
        return Verdict("open", f"; it ran well on {node.id} before, so it is tried again, which costs no retry yet")
    return Verdict("open", f"; it is tried on another node than {_listed(names)}, which costs no retry yet")


def _tries(state: State, app: App) -> int:
    """Return how often an app has failed on nodes that are not suspect, however long ago."""
    return sum(pair.tries for name, pair in app.failed_on.items() if not _is_suspect(state, name))


def _is_disproved(state: State, pair: PairFailure) -> bool:
    """Return whether the node works for others that need no less, as far as is known."""
    node = state.nodes.get(pair.node)
    known = node.failed.get(pair.app) if node is not None else None
    return known is not None and known.disproved and not known.confirmed


def _most_nodes(state: State) -> int:
    return state.settings.suspect_after or 3


def _counts_against(state: State, app: App, pair: PairFailure, now: int) -> bool:
    """Return whether an earlier failure still says something about the app."""
    node = state.nodes.get(pair.node)
    return node is not None and node.suspect is None and _is_recent(state, pair, now)


def _is_recent(state: State, pair: PairFailure, now: int) -> bool:
    return now < pair.at + int(state.settings.suspect_within_s * SECOND)


def _could_run_without(state: State, app: App, tried: Mapping[str, object]) -> bool:
    """Return whether the nodes that take something new, without these, could hold n_min of the app, whatever runs there."""
    room, require = 0, require_of(app)
    for name, node in state.nodes.items():
        if name in tried or not node.takes_new or (require and not satisfies(require, labels_of(node))):
            continue
        room += _fitting(app, node.capacity)
        if room >= app.n_min:
            return True
    return False


# --- where apps may go --------------------------------------------------------------------------------------------------


class Placing(NamedTuple):
    """What a decision has to know of pairs and suspect nodes.  Empty on a cluster without either."""

    avoiding: Mapping[str, list[str]]
    """Nodes that each app avoids."""
    probes: Mapping[str, str]
    """App that probes each node that is probed now."""
    suspect: bool
    """Whether any node is suspect."""
    watched: Mapping[str, list[str]]
    """Apps that may be on each watched node: those that are, and the next one."""

    def labels(self, node: Node, labels: Mapping[str, str]) -> Mapping[str, str]:
        """Return a node's labels, with those for pairs and probes."""
        made = {f"{_AVOIDED}{word(name)}": "" for name, nodes in self.avoiding.items() if node.id in nodes}
        if node.suspect is not None:
            made[SUSPECT] = ""
        if node.id in self.probes:
            made[f"{_PROBE}{word(self.probes[node.id])}"] = ""
        if node.id in self.watched:
            made |= {WATCHED: "", **{f"{WATCHED}/{word(name)}": "" for name in self.watched[node.id]}}
        return {**labels, **made} if made else labels

    def require(self, app: App, require: str) -> str:
        """Return an app's requirement, with what follows from pairs and probes."""
        if not self.suspect and not self.watched and app.id not in self.avoiding:
            return require
        parts = [f"({require})"] if require.strip() else []
        parts += [f"not has {_AVOIDED}{word(app.id)}"] if app.id in self.avoiding else []
        if app.id in self.probes.values():
            parts.append(f"has {_PROBE}{word(app.id)}")
        elif self.suspect:
            parts.append(f"not has {SUSPECT}")
        parts += [f"(not has {WATCHED} or has {WATCHED}/{word(app.id)})"] if self.watched else []
        return " and ".join(parts)

    def in_words(self, state: State, app: App, require: str, text: str) -> str:
        """Return a policy's reason in the words of the app's spec, with the nodes that are left out and why."""
        whole = self.require(app, require)
        if whole == require:
            return text
        with_require = (
            text.replace(whole, require) if require.strip() else text.replace(f"satisfies {whole}", "may take it")
        )
        left_out = [f"{name}, where it failed ({brief(app.failed_on[name])})" for name in self.avoiding.get(app.id, [])]
        left_out += [
            f"{name}, which is suspect" for name, node in sorted(state.nodes.items()) if node.suspect is not None
        ]
        left_out += [f"{name}, which takes one app at a time after failures" for name in self._closed_to(app)]
        return f"{with_require}; left out: {_listed(left_out)}" if left_out else with_require

    def _closed_to(self, app: App) -> list[str]:
        return [name for name, allowed in self.watched.items() if app.id not in allowed]


def placing(
    state: State, now: int, places: Mapping[str, Collection[str]] | None = None, passed_over: Collection[str] = ()
) -> Placing:
    """Return what concerns a decision at `now` (UTC ns).  `places` are the nodes to which apps that wait
    have a claim, by app: they count as being there.  Apps that are `passed_over` are no probes."""
    avoiding = {app.id: nodes for app in state.live_apps() if app.failed_on and (nodes := avoided(state, app, now))}
    suspects = [node for _, node in sorted(state.nodes.items()) if node.suspect is not None]
    probes: dict[str, str] = {}
    next_ones = _NextOnes(state, now)
    for node in suspects:
        if (chosen := _prober(state, node, now, next_ones, dict.fromkeys(probes.values()))) is not None:
            probes[node.id] = chosen
    probes = {name: app for name, app in probes.items() if app not in passed_over}
    return Placing(avoiding, probes, bool(suspects), _watched(state, now, avoiding, probes, places or {}, next_ones))


class _NextOnes:
    """The apps that may start now, in order of arrival, and the free room of all nodes; each is looked up once, if at all."""

    def __init__(self, state: State, now: int) -> None:
        self._state, self._now = state, now
        self._takes_new = [node for _, node in sorted(state.nodes.items()) if node.takes_new]
        self._has_room: dict[str, bool] = {}

    @cached_property
    def apps(self) -> list[App]:
        """Those that a closed gate, their group or a pause keeps waiting are left out: they would keep others waiting."""
        later = held_back(self._state, self._now)
        return [
            app
            for app in self._state.live_apps()
            if app.current is None
            and app.retry_at <= self._now
            and not app.cancel_requested
            and app.id not in later
            and not closed(app, self._now)
            and not any(generation.failed and not generation.ended for generation in app.generations.values())
        ]

    @cached_property
    def free(self) -> dict[str, dict[str, int]]:
        """The free room of each node."""
        free = {node.id: dict(node.capacity) for node in self._state.nodes.values()}
        for app in self._state.apps.values():
            for generation in app.generations.values():
                for container in () if generation.ended and generation.released else generation.all_containers():
                    if container.state != "exited" and container.node in free:
                        room = free[container.node]
                        for name, amount in app.needs(generation).items():
                            room[name] = room.get(name, 0) - amount
        return free

    def has_room(self, app: App) -> bool:
        """Return whether n_min of an app would fit into what is free."""
        if app.id not in self._has_room:
            places = sum(_fitting(app, self.free[node.id]) for node in self._takes_new)
            self._has_room[app.id] = places >= bounds(app, self._now).n_min
        return self._has_room[app.id]


def _fitting(app: App, room: Mapping[str, int]) -> int:
    """Return how many containers of an app fit into this room, in whole gangs."""
    needs = [(name, amount) for name, amount in app.next_demand.items() if amount > 0]
    here = max(0, min((room.get(name, 0) // amount for name, amount in needs), default=app.n_min))
    return here - here % max(app.next_spec.gang, 1)


def _watched(
    state: State,
    now: int,
    avoiding: Mapping[str, list[str]],
    probes: Mapping[str, str],
    places: Mapping[str, Collection[str]],
    next_ones: _NextOnes,
) -> dict[str, list[str]]:
    """Return the nodes of which one more failure makes a suspect, and by node the apps that may be there."""
    by_node: dict[str, list[str]] = {}
    taken = dict.fromkeys(probes.values())
    there = _by_node(state, nearly := _nearly_suspect(state, now))
    for app_id, nodes in sorted(places.items()):
        for name in nodes:
            if name in there:
                there[name].append((state.apps[app_id], []))
    for name in nearly:
        by_node[name] = [app.id for app, _ in there[name]]
        if all(_run_well(app, containers, now) for app, containers in there[name]):
            following = _next_of(state.nodes[name], next_ones, avoiding, taken)
            by_node[name] += following
            taken |= dict.fromkeys(following)
    return by_node


def _nearly_suspect(state: State, now: int) -> list[str]:
    k = state.settings.suspect_after
    may_be = [
        node
        for _, node in sorted(state.nodes.items())
        if k and node.usable and (now < node.trial_until or len(node.failed) >= k - 1)
    ]
    known = evidence(state, now) if any(now >= node.trial_until for node in may_be) else {}
    return [node.id for node in may_be if now < node.trial_until or len(known.get(node.id, ())) >= k - 1]


def _next_of(node: Node, next_ones: _NextOnes, avoiding: Mapping[str, list[str]], taken: Collection[str]) -> list[str]:
    """Return the first app that waits and may be tried on a watched node, as a list: one for which there is room now, else
    one for which others could make some."""
    other: list[str] = []
    for app in next_ones.apps:
        may_be_here = app.id not in taken and node.id not in avoiding.get(app.id, ()) and _fitting(app, node.capacity)
        if not may_be_here or (other and not next_ones.has_room(app)) or not _suits(app, node):
            continue
        if _fitting(app, next_ones.free[node.id]) and next_ones.has_room(app):
            return [app.id]
        other = other or [app.id]
    return other


def evidence(state: State, now: int) -> dict[str, list[PairFailure]]:
    """Return by node the recent failures that count at `now` (UTC ns): those that their app's run elsewhere confirms, or that
    no app's run there disproves.  Nodes without any are left out."""
    failures = {
        node.id: pairs for _, node in sorted(state.nodes.items()) if node.failed and (pairs := _kept(state, node, now))
    }
    for name, apps in _by_node(state, failures).items():
        for app, containers in apps:
            if failures[name] and _run_well(app, containers, now):
                since, needs = min(container.started_at for container in containers), needs_of(app)
                failures[name] = [
                    pair
                    for pair in failures[name]
                    if pair.at > since
                    or not all(need in needs for need in pair.needs)
                    or _is_confirmed(state, pair, now)
                ]
    return {name: pairs for name, pairs in failures.items() if pairs}


def _kept(state: State, node: Node, now: int) -> list[PairFailure]:
    """Return the recent failures on a node that count whatever runs there now."""
    pairs = [
        pair
        for pair in node.failed.values()
        if _is_recent(state, pair, now) and (not pair.disproved or _is_confirmed(state, pair, now))
    ]
    owners = dict.fromkeys(_owner(state, pair.app) for pair in pairs if pair.outvoted)
    return [pair for pair in pairs if not pair.outvoted] if len(owners) == 1 else pairs


def _is_confirmed(state: State, pair: PairFailure, now: int) -> bool:
    """Return whether a failure's app has run well elsewhere since.  The fold learns it when the app's containers end, which
    may take days; until then what runs now tells."""
    app = state.apps.get(pair.app)
    if pair.confirmed or app is None or app.current is None:
        return pair.confirmed
    containers = list(app.current.planned.values())
    later = all(container.node != pair.node and container.started_at >= pair.at for container in containers)
    return bool(containers) and later and _run_well(app, containers, now)


def _by_node(state: State, nodes: Collection[str]) -> dict[str, list[tuple[App, list[Container]]]]:
    """Return by node, of these, the apps that have a place there, with their containers there."""
    placed: dict[str, list[tuple[App, list[Container]]]] = {name: [] for name in nodes}
    if not nodes:
        return placed
    for app in state.live_apps():
        there: dict[str, list[Container]] = {}
        for container in app.current.planned.values() if app.current is not None else ():
            if container.node in placed:
                there.setdefault(container.node, []).append(container)
        for name, containers in there.items():
            placed[name].append((app, containers))
    return placed


def _run_well(app: App, containers: list[Container], now: int) -> bool:
    """Return whether all these containers have run for long enough, or have worked."""
    if app.current is None or any(container.state != "running" for container in containers):
        return False
    return app.current.worked or now - max(container.started_at for container in containers) >= SHORT_S * SECOND


def avoided(state: State, app: App, now: int) -> list[str]:
    """Return the nodes that an app avoids at `now` (UTC ns): where it failed, unless it runs there, or no others could take
    it."""
    here = app.current.by_node() if app.current is not None else {}
    tried = [
        name
        for name, pair in app.failed_on.items()
        if name not in here and not pair.proven and _is_recent(state, pair, now)
    ]
    return sorted(tried) if tried and _could_run_without(state, app, dict.fromkeys(tried)) else []


def keeps(state: State, app: App, generation: Generation) -> bool:
    """Return whether an app runs on a suspect node, so that it stays as it is."""
    if app.restart_wanted:
        return False
    nodes = (state.nodes.get(container.node) for container in generation.containers.values())
    return any(node is not None and node.suspect is not None and not node.draining for node in nodes)


def _prober(state: State, node: Node, now: int, next_ones: _NextOnes, taken: Collection[str]) -> str | None:
    """Return the app that may be tried on a suspect node now; None if none is due, or none suits.  After a long time without
    an app that needs no less than those that failed, any may be tried.  An app that has failed elsewhere may be broken, so
    others go first."""
    suspect = node.suspect
    if suspect is None or now < suspect.probe_at or node.condition != "up" or node.draining or node.foreign:
        return None
    if probing(state, node) is not None:
        return None
    needed = suspect.needs if now < suspect.probe_at + LONGEST_PROBE_S * SECOND else []
    doubtful: str | None = None
    for app in next_ones.apps:
        agrees = app.spec.retries.limit > 0 and not app.interrupted_at and app.id not in taken
        if not agrees or (node.id in app.failed_on and _is_recent(state, app.failed_on[node.id], now)):
            continue
        needs = needs_of(app)
        enough = _fitting(app, next_ones.free[node.id]) >= bounds(app, now).n_min
        if enough and all(need in needs for need in needed) and _suits(app, node):
            if not app.failed_on:
                return app.id
            doubtful = doubtful or app.id
    return doubtful


def _suits(app: App, node: Node) -> bool:
    require = require_of(app)
    return not require or satisfies(require, labels_of(node))


def probing(state: State, node: Node) -> App | None:
    """Return the app that is being tried on a suspect node."""
    app = state.apps.get(node.suspect.probe) if node.suspect is not None else None
    if app is None or app.ended or app.current is None or node.id not in app.current.by_node():
        return None
    return app


def note_placed(state: State, app: App, nodes: list[str]) -> list[str]:
    """Fold a decision: an app that is placed on a suspect node is its probe.  Return these nodes' ids."""
    suspects: list[str] = []
    for name in nodes:
        node = state.nodes.get(name)
        if node is not None and node.suspect is not None:
            node.suspect = msgspec.structs.replace(node.suspect, probe=app.id)
            suspects.append(name)
    return suspects


# --- suspect nodes ------------------------------------------------------------------------------------------------------


def facts(state: State, now: int) -> list[Event]:
    """Return which nodes become suspect, and which return, at `now` (UTC ns)."""
    suspects = [node for _, node in sorted(state.nodes.items()) if node.suspect is not None]
    changes: list[Event] = [fact for node in suspects if (fact := _returns(state, node, now)) is not None]
    candidates = [
        node
        for _, node in sorted(state.nodes.items())
        if node.usable
        and len(node.failed) >= (least := _least(state, node, now))
        and len(_kept(state, node, now)) >= least
    ]
    if not state.settings.suspect_after or not candidates or len(suspects) >= _most_suspects(state):
        return changes
    known = evidence(state, now)
    for node in candidates:
        if (became := _becomes(state, node, known, now)) is not None and len(suspects) < _most_suspects(state):
            suspects.append(node)
            changes.append(became)
    return changes


def _least(state: State, node: Node, now: int) -> int:
    """Return after the failures of how many apps a node is suspect."""
    return 1 if now < node.trial_until else state.settings.suspect_after


def _becomes(state: State, node: Node, known: Mapping[str, list[PairFailure]], now: int) -> NodeSuspected | None:
    least, pairs = _least(state, node, now), known.get(node.id, [])
    others = [other.id for other in state.nodes.values() if other.usable and other.id != node.id]
    usual = sum(len(known.get(name, ())) for name in others) / max(1, len(others))
    if len(pairs) < least or len(pairs) <= OUTLIER * usual or not _runs_elsewhere(state, node, now):
        return None
    pairs = sorted(pairs, key=lambda pair: (pair.at, pair.app))
    if least == 1:
        reason = "an app failed there soon after its return"
    else:
        minutes = state.settings.suspect_within_s / 60
        reason = f"{len(pairs)} different apps failed there within {minutes:g} min, and apps run on other nodes"
    return NodeSuspected(
        node=node.id,
        apps=[pair.app for pair in pairs],
        failures=[brief(pair) for pair in pairs],
        least=least,
        reason=reason,
        probe_at=now + _pause_s(relapses(state, node, now)) * SECOND,
    )


def relapses(state: State, node: Node, now: int) -> int:
    """Return how many returns of a node count at `now` (UTC ns): half as many after each `FORGIVEN` times t, after its trial,
    for which it is known to have run apps well."""
    if not node.relapses:
        return 0
    there = _by_node(state, [node.id])[node.id]
    until = now if any(_run_well(app, containers, now) for app, containers in there) else node.proven_at
    halvings = (until - node.trial_until) // max(1, int(FORGIVEN * state.settings.suspect_within_s * SECOND))
    return node.relapses >> min(max(halvings, 0), 64)


def _most_suspects(state: State) -> int:
    known = sum(node.condition == "up" for node in state.nodes.values())
    return max(1, known // PART) if known > 1 else 0


def _runs_elsewhere(state: State, node: Node, now: int) -> bool:
    for app_id in state.names.values():
        if any(container.node != node.id for container in state.apps[app_id].running_containers()):
            return True
    since = now - int(state.settings.suspect_within_s * SECOND)
    return any(other.proven_at > since for other in state.nodes.values() if other.usable and other.id != node.id)


def _returns(state: State, node: Node, now: int) -> NodeTrusted | None:
    suspect = node.suspect
    if suspect is None:
        return None
    if not state.settings.suspect_after:
        return NodeTrusted(node=node.id, how="operator", reason="nodes do not become suspect by rule any more")
    if len(suspect.apps) < suspect.least:
        return NodeTrusted(node=node.id, how="evidence", reason="the apps that failed there are broken themselves")
    if node.proven_at > suspect.since:
        return NodeTrusted(node=node.id, how="probe", reason=f"{suspect.probe} was started there and ran well")
    app = probing(state, node)
    if app is not None and (proven := _proven_at(node, app)) is not None and proven <= now:
        return NodeTrusted(node=node.id, how="probe", reason=f"{app.id} was started there and runs well")
    return None


def _proven_at(node: Node, app: App) -> int | None:
    """Return when (UTC ns) the probe that runs there will have run for long enough; None if it has not started."""
    current = app.current
    there = (
        [container for container in current.containers.values() if container.node == node.id]
        if current is not None
        else []
    )
    if current is None or not there or any(placed.state != "running" for placed in there):
        return None
    started = max(placed.started_at for placed in there)
    return started if current.worked else started + SHORT_S * SECOND


def suspected(state: State, event: NodeSuspected) -> bool:
    """Fold it; return whether the node takes nothing new from here on, so that plans there are void."""
    node = state.nodes.get(event.node)
    if node is None or node.suspect is not None:
        state.counters.ignored += 1
        return False
    known = [node.failed[app].needs for app in event.apps if app in node.failed]
    needs = [need for need in known[0] if all(need in node_id for node_id in known)] if known else []
    node.suspect = Suspect(
        since=state.time,
        seq=state.seq,
        apps=list(event.apps),
        failures=list(event.failures),
        needs=needs,
        least=event.least,
        reason=event.reason,
        probe_at=event.probe_at,
    )
    node.relapses = relapses(state, node, state.time)
    for name in event.apps:
        app = state.apps.get(name)
        if app is not None and all(_is_suspect(state, node_id) for node_id in app.failed_on):
            app.failed_trials, app.debt, app.barred, app.disturbs = 0, 0, False, False
    return True


def _is_suspect(state: State, name: str) -> bool:
    node = state.nodes.get(name)
    return node is None or node.suspect is not None


def trusted(state: State, node_id: str, how: str) -> bool:
    """Fold the return of a node; return whether it changes anything."""
    node = state.nodes.get(node_id)
    if node is None or (node.suspect is None and not node.failed):
        return False
    if how == "operator":
        for app in state.apps.values():
            app.failed_on.pop(node.id, None)
    if how != "evidence":
        node.failed = {}
    if how == "probe":
        node.relapses += 1
        node.trial_until = state.time + 2 * int(state.settings.suspect_within_s * SECOND)
    elif how == "operator":
        node.relapses, node.trial_until = 0, 0
    node.suspect = None
    return True


def carried_over(state: State, node: Node, old: Node) -> None:
    """A new start of the agent may have healed the node, so the next probe is due."""
    node.failed, node.suspect, node.relapses = old.failed, old.suspect, old.relapses
    node.trial_until, node.proven_at = old.trial_until, old.proven_at
    if node.suspect is not None and node.process != old.process:
        node.suspect = msgspec.structs.replace(node.suspect, probe_at=state.time)


def due_at(state: State) -> Iterator[int]:
    """Yield when (UTC ns) a probe that runs now has run for long enough."""
    for node in state.nodes.values():
        app = probing(state, node) if node.suspect is not None else None
        if app is not None and (proven := _proven_at(node, app)) is not None:
            yield proven


def ends_of_waits(state: State) -> Iterator[int]:
    """Yield when (UTC ns) a decision may place more: a probe is due, a pair is avoided no longer, a node is watched no longer,
    an app has run well on one that is, or elsewhere so that its failures count."""
    failed: dict[str, None] = {}
    within = int(state.settings.suspect_within_s * SECOND)
    for node in state.nodes.values():
        if node.suspect is not None:
            if probing(state, node) is None:
                yield node.suspect.probe_at
                yield node.suspect.probe_at + LONGEST_PROBE_S * SECOND
        elif node.failed or node.trial_until:
            failed[node.id] = None
            yield node.trial_until
            if len(node.failed) >= state.settings.suspect_after - 1:
                for pair in node.failed.values():
                    yield pair.at + within
    for app_id in state.names.values():
        app = state.apps[app_id]
        current = app.current
        if app.failed_on and current is None:
            for pair in app.failed_on.values():
                yield pair.at + within
        if failed and current is not None and not current.worked:
            for container in current.containers.values():
                if (app.failed_on or container.node in failed) and container.state == "running":
                    yield container.started_at + SHORT_S * SECOND


# --- in words -----------------------------------------------------------------------------------------------------------


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def brief(pair: PairFailure) -> str:
    """Return the failure's reason without what the verdict added to it, and without its place, which is known."""
    text = pair.reason.partition("; ")[0]
    for mark in (f" on {pair.node} ", f" on {pair.node}: "):
        text = text.partition(mark)[2] or text
    return text[:120]


# --- what people see --------------------------------------------------------------------------------------------------


class FailedPair(msgspec.Struct, frozen=True, kw_only=True):
    """A recent failure of an app on a node at its start, or shortly after it."""

    app: str
    name: str
    """Name of the app."""
    node: str
    failure: str
    """The cause, as in `GenerationFailed`."""
    why: str
    """The cause in words; "" if it is another tenant's."""
    at: int
    """Time of the last failure (UTC ns)."""
    tries: int
    """Number of failures there in a row."""
    avoided: bool
    """Whether the app is not placed there again for now."""


def failed_where(state: State, app: App, now: int) -> list[FailedPair]:
    """Return where an app failed lately, at `now` (UTC ns)."""
    left_out = avoided(state, app, now) if app.failed_on and not app.ended else []
    return [_pair(state, app, node, node in left_out) for node in sorted(app.failed_on)]


def failed_here(state: State, node: Node, now: int) -> list[FailedPair]:
    """Return which apps failed lately on a node, at `now` (UTC ns); not those that turned out to be broken."""
    pairs = []
    for app_id in sorted(node.failed):
        app = state.apps.get(app_id)
        if app is not None and node.id in app.failed_on:
            left_out = not app.ended and node.id in avoided(state, app, now)
            pairs.append(_pair(state, app, node.id, left_out))
    return pairs


def _pair(state: State, app: App, node: str, left_out: bool) -> FailedPair:
    known = app.failed_on[node]
    return FailedPair(
        app=app.id,
        name=app.name,
        node=node,
        failure=known.failure,
        why=brief(known),
        at=known.at,
        tries=known.tries,
        avoided=left_out,
    )


def suspicion(state: State, node: Node) -> str:
    """Return since when a node is suspect, what failed there, and when it is tried; "" if it is not suspect."""
    suspect = node.suspect
    if suspect is None:
        return ""
    since = f"suspect since {moment(suspect.since)}, so it takes nothing new"
    return f"{since}: {failed_there(state, suspect.apps, suspect.failures)}; {next_probe(state, node)}"


def with_remedy(state: State, node: Node) -> str:
    """Return the same as a sentence that says what to do."""
    text = suspicion(state, node)
    return f"{node.id} is {text}; repair it, and `dorm nodes trust {node.id}` ends this" if text else ""


def failed_there(state: State, apps: list[str], failures: list[str]) -> str:
    """`train failed (no such file) and eval failed (exit code 1)`; a reason that is withheld is left out."""
    named = []
    for app_id, why in zip(apps[:MOST_NAMED], [*failures, *[""] * len(apps)], strict=False):
        app = state.apps.get(app_id)
        reason = f" ({why})" if why and not why.startswith("(") else ""
        named.append(f"{app.name if app is not None else app_id} failed{reason}")
    more = len(apps) - len(named)
    if more > 0:
        return f"{', '.join(named)}, and {more} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named) or "apps failed there"


def next_probe(state: State, node: Node) -> str:
    """Return when one app is tried on a suspect node."""
    suspect = node.suspect
    if suspect is None:
        return ""
    tries = f" after {suspect.failed_probes} that failed" if suspect.failed_probes else ""
    if (app := probing(state, node)) is not None:
        return f"{app.name} is tried there now{tries}"
    return f"one app is tried there{tries} at {moment(suspect.probe_at)} or later"


def avoiding(state: State, app: App, now: int) -> str:
    """Return which nodes an app avoids at `now` (UTC ns), and why; "" for none."""
    if app.ended or not app.failed_on:
        return ""
    nodes = avoided(state, app, now)
    return ", ".join(f"{node} ({brief(app.failed_on[node])})" for node in nodes)
