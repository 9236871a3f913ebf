"""Admission: which submissions may run; the gate between untrusted input and the cluster.

A spec is checked by the client for comfort and here for truth: a client may be of another release, or anyone's own
program.  Everything that can make an app wait forever is refused with what to do about it: no node whose labels match,
resources that no node has, a volume that no node offers, an awaited app that has failed.  What may pass (a full
cluster, a node that is lost) is not: the app waits.  Before any node has joined, nothing is known, so nothing is
refused for want of room.

    ids      an app's id follows from its name and its submission's id.  A repeated submission is the same app, so a
             client that got no answer may repeat it; with tenants, the digest is too long for anyone to find a
             submission with the id of another's app
    turns    `taken` and `LiveApps` carry what earlier answers of the same round have given away: the state shows it
             only afterwards, and two apps of one name were let in together
    limits   each tenant has so many live apps; an open cluster has no tenants and no limit
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from dorm.core.app import TENANTS, name_key
from dorm.core.folded import Effect, ignored
from dorm.core.gates import awaited_apps
from dorm.core.offers import check_offered
from dorm.core.round_size import MOST_CONTAINERS
from dorm.core.settings import most_apps
from dorm.core.state import Submission
from dorm.core.submissions import queue, with_origin
from events.identities import tenant_in
from events.kinds import AppAccepted, AppRejected
from events.limits import clipped
from events.quantities import humanize
from events.spec import LARGEST_SPEC, SpecError, check_shipped, check_spec
from events.spec.abilities import needed
from events.spec.requirements import RequirementError, requirement

if TYPE_CHECKING:
    from collections.abc import Collection

    from dorm.core.state import Node, State
    from events import kinds as k
    from events.log.records import Record
    from events.spec import AppSpec, CheckedSpec


def app_id(name: str, submission: str) -> str:
    """Return an app's id: its name and a digest of its submission's id. A repeated submission is the same app, while
    a later app of the same name is another one. If submissions belong to tenants, the digest is so long that no
    tenant can find a submission that gives the id of another tenant's app."""
    if tenant_in(submission):
        bits = int.from_bytes(hashlib.blake2b(submission.encode(), digest_size=8).digest(), "big")
        return f"{name}-{''.join([DIGITS[bits >> shift & 31] for shift in range(59, 0, -5)])}"
    bits = int.from_bytes(hashlib.blake2b(submission.encode(), digest_size=5).digest(), "big")
    return f"{name}-{''.join([DIGITS[bits >> shift & 31] for shift in (35, 30, 25, 20, 15, 10)])}"


DIGITS = "abcdefghijklmnopqrstuvwxyz234567"
"""RFC 4648's digits, in lower case."""
ID_DIGITS = r"[a-z2-7]{12}|[a-z2-7]{6}"
"""Pattern of what follows the name in an app's id: the longer one if submissions belong to tenants.  A name has at most
48 characters, so an id can be a host's name."""


class LiveApps:
    """How many apps of each tenant have not ended, with those that the same round lets in.  An open cluster has no tenants,
    and counts none."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._counts: Counter[str] | None = None

    def check_room(self, tenant: str) -> None:
        """Refuse one more app of a tenant that has as many as it may.  Raises SpecError."""
        if not tenant:
            return
        if self._counts is None:
            keys = (name.partition(TENANTS) for name in self._state.names)
            self._counts = Counter(owner for owner, mark, _ in keys if mark)
        there, most = self._counts[tenant], most_apps(self._state.settings)
        if there >= most:
            raise SpecError(
                f"{tenant} has {there:,} of at most {most:,} apps that have not ended; cancel some, or ask an operator to "
                "raise the limit (`dorm policy set tenant_apps=N`)",
                code="tenant.apps.too_many",
            )

    def add(self, tenant: str) -> None:
        """Count an app that is let in, after `check_room`."""
        if self._counts is not None:
            self._counts[tenant] += 1


def answer(state: State, submission: Submission, taken: dict[str, str], live: LiveApps) -> AppAccepted | AppRejected:
    """Return the answer to one submission.

    `taken` maps names (`name_key`) that were assigned earlier in the same round to their apps, and `live` counts these.
    """
    if submission.app:
        return AppRejected(
            app=submission.app,
            submission=submission.id,
            reason=clipped(submission.refused),
            code=submission.refused_code,
            refused="update",
            cause=submission.id,
        )
    try:
        spec = _checked(submission)
        _check_name(state, spec, submission, taken)
        check_room(state, spec, spec.n_min, submission.tenant)
        stored = with_origin(state, spec.stored(), submission.id)
        after = awaited_apps(state, spec, submission, taken)
        live.check_room(submission.tenant)
    except SpecError as error:
        name = name_of(submission.spec)
        return AppRejected(
            app=app_id(name, submission.id) if name else "",
            submission=submission.id,
            reason=clipped(str(error)),
            code=error.code,
            cause=str(submission.seq),
        )
    live.add(submission.tenant)
    return AppAccepted(
        app=app_id(spec.name, submission.id),
        spec=stored,
        submission=submission.id,
        after=after,
        cause=str(submission.seq),
    )


def refusals(state: State, spec: CheckedSpec, submission: Submission) -> list[SpecError]:
    """Return everything for which `answer` would refuse this submission of a checked spec now; it states only the first.
    `submission` tells whose it is, by its id.  A folder that is still to be shipped counts as shipped."""
    live = LiveApps(state)
    errors = []
    for check in (
        lambda: _check_name(state, spec, submission, {}),
        lambda: check_room(state, spec, spec.n_min, submission.tenant),
        lambda: with_origin(state, spec.stored(), submission.id),
        lambda: awaited_apps(state, spec, submission, {}),
        lambda: live.check_room(submission.tenant),
    ):
        try:
            check()
        except SpecError as error:
            errors.append(error)
    return errors


def _checked(submission: Submission) -> CheckedSpec:
    if submission.refused:
        raise SpecError(submission.refused, code=submission.refused_code)
    if submission.size > LARGEST_SPEC:
        text = f"the submission has {submission.size:,} bytes; at most {LARGEST_SPEC:,} are taken"
        raise SpecError(text, code="spec.too_large")
    spec = check_spec(submission.spec)
    check_shipped(spec)
    return spec


def name_of(document: Any) -> str:
    """Return the name in a submission, checked or not; '' if it has none that can be shown."""
    name = document.get("name") if isinstance(document, dict) else None
    return name[:48] if isinstance(name, str) and name.isascii() and name.isprintable() else ""


def app_submitted(state: State, event: k.AppSubmitted, record: Record) -> Effect:
    if app_id(name_of(event.spec), event.id) in state.apps:
        return ignored(state)
    return queue(
        state,
        Submission(id=event.id, seq=state.seq, at=state.time, by=event.by, spec=event.spec, size=len(record.body)),
        record,
    )


def _check_name(state: State, spec: CheckedSpec, submission: Submission, taken: dict[str, str]) -> None:
    key = name_key(spec.name, submission.id)
    holder = taken.get(key) or state.names.get(key)
    if holder:
        text = f"an app named {spec.name!r} already exists ({holder}); cancel it or choose another name"
        raise SpecError(text, code="spec.name.taken")


def check_room(state: State, spec: AppSpec, n_min: int, tenant: str = "") -> None:
    """Refuse an app that the known nodes could not run even if they were empty; before any node joined it waits.  `tenant`
    is whose app it is, "" on an open cluster.

    Raises SpecError."""
    if n_min > MOST_CONTAINERS:
        raise SpecError(
            f"n_min: {n_min:,} containers can't be placed at once; at most {MOST_CONTAINERS:,} of one app can",
            code="spec.n_min.too_large",
        )
    if not state.nodes:
        return
    nodes = _admitted(state, spec.require)
    _check_abilities(nodes, spec)
    matching, match = "", ""
    if len(nodes) < len(state.nodes):
        matching, match = f" that matches {_shown(spec.require)}", f"match {_shown(spec.require)}"
    if spec.volumes or spec.needs_environment:
        nodes = check_offered(nodes, spec, tenant or spec.user)
    if spec.volumes:
        matching, match = (
            f"{matching} and offers its volumes" if matching else " that offers its volumes",
            (f"{match} and offer its volumes" if match else "offer its volumes"),
        )
    demand = spec.resources()
    for name, amount in demand.items():
        most = max(node.capacity.get(name, 0) for node in nodes)
        needs = f"one container needs {humanize(name, amount)}"
        if amount <= most:
            needs += f" and a gang of {spec.gang}, whole on one node, {humanize(name, amount * spec.gang)}"
        if amount * spec.gang > most:
            text = f"demand.{name}: {needs}, and no node{matching} has more than {humanize(name, most)}"
            raise SpecError(text, code="spec.demand.too_large")
    gangs = sum(
        min(node.capacity.get(name, 0) // (amount * spec.gang) for name, amount in demand.items()) for node in nodes
    )
    if gangs * spec.gang < n_min:
        whole = f", in gangs of {spec.gang} that are whole on one node," if spec.gang > 1 else ""
        which = f"all {len(nodes)} nodes"
        if match:
            which = f"the nodes that {match} ({len(nodes)} of {len(state.nodes)})"
        raise SpecError(
            f"n_min: {n_min} containers of this demand{whole} can't run at once; {which} together, "
            f"empty, take {gangs * spec.gang}",
            code="spec.n_min.no_room",
        )


def _admitted(state: State, require: str) -> list[Node]:
    """Return the nodes that an app with this requirement may use, by name. Raises SpecError if there are none."""
    try:
        wanted = requirement(require)
    except RequirementError as error:
        raise SpecError.at("require", error) from None
    nodes = [state.nodes[node] for node in sorted(state.nodes)]
    admitted = [node for node in nodes if wanted.matches(node.labels)]
    if not admitted:
        absent = [name for name in wanted.labels if not any(name in node.labels for node in nodes)]
        hint = f" (no node has a label {absent[0][:60]})" if absent else ""
        text = f"require: no node's labels match {_shown(require)}{hint}; `dorm nodes -o wide` shows them"
        raise SpecError(text, code="spec.require.no_node")
    return admitted


def _check_abilities(nodes: Collection[Node], spec: AppSpec) -> None:
    """Refuse an app with fields that the agents of all these nodes would ignore.  Raises SpecError."""
    for ability in needed(spec):
        if not any(ability in node.abilities for node in nodes):
            raise SpecError(
                f"{ability}: the agents of all nodes that it may use are of a release that does not have this; upgrade them "
                "(`dorm nodes -o wide`)",
                code=f"spec.{ability}.no_node",
            )


def _shown(require: str) -> str:
    """Return a requirement for quoting in a message: on one line, and short."""
    text = str(requirement(require))
    return text if len(text) <= 120 else text[:117] + "..."
