"""The state as rows for people and programs: what `ps`, `nodes`, `describe` and the live table show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.batches import batch_now
from dorm.core.costs import adjust_s, works_at
from dorm.core.delays import delay_shown
from dorm.core.failures import limit_of
from dorm.core.faults import avoiding, failed_here, failed_where, with_remedy
from dorm.core.gates import hold_shown, reason_of, runtime_shown, shown_reason
from dorm.core.offers import shown_volumes, trouble_with_fitness, trouble_with_volumes
from dorm.core.progress import doubt_shown, shown
from dorm.core.resizable import kept_whole
from dorm.core.settings import kept_until
from dorm.core.shared_folder import trouble
from dorm.core.sizes import bounds
from events.quantities import SECOND, humanize
from events.spec import shipped, volumes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.core.progress import Reported
    from dorm.core.state import App, Container, Generation, Node, State


class AppRow(msgspec.Struct, frozen=True):
    """One line of `ps`.  Times in seconds."""

    name: str
    id: str
    user: str
    phase: str
    containers: int
    n_min: int
    n_max: int
    nodes: int
    generation: int
    step: int
    loss: float | None
    samples_per_s: float | None
    adjustments: int
    failures: int
    age_s: float
    note: str
    """Reason why it waits or has fewer containers than it could use, or how it ended."""
    loss_is: str = ""
    """`nan`, `inf` or `-inf` if the last loss is not a finite number."""
    progress_age_s: float | None = None
    """Time since its last progress or checkpoint; None if its present generation has reported neither, and once it has
    ended."""
    sweep: str = ""
    """The sweep that it belongs to, "" for none."""
    loss_step: int | None = None
    """The step of the loss, where it is not `step`: the last reports named none."""


class SuspectRow(msgspec.Struct, frozen=True):
    """Why a node takes nothing new: apps failed there."""

    since: int
    """Time since which it is suspect (UTC ns)."""
    apps: list[str]
    """Ids of those that failed there."""
    failures: list[str]
    """Failure of each of them in words."""
    reason: str
    probe_at: int
    """Time from which one app may be tried there (UTC ns)."""
    failed_probes: int
    probe: str
    """Id of the app that was tried there last; "" for none."""


class NodeRow(msgspec.Struct, frozen=True):
    """One line of `nodes`."""

    name: str
    address: str
    condition: str
    runtime: str
    containers: int
    capacity: dict[str, int]
    used: dict[str, int]
    """Resources reserved for containers that may run, in base units."""
    labels: dict[str, str]
    note: str = ""
    """Another machine that requested its name and was refused."""
    checkpoints: str = ""
    """Id of its folder of checkpoints."""
    trouble: str = ""
    """Reason why it gets no containers, or not those of all apps, although it is up, and what to do."""
    suspect: SuspectRow | None = None
    """Reason why it is suspect; null if it is not."""
    volumes: dict[str, str] = {}
    """Access that apps have to the folders that it offers, by name."""


class Summary(msgspec.Struct, frozen=True):
    """The cluster in one line."""

    seq: int
    nodes: int
    apps: int
    utilization: float
    """U of the present placement: the sum over resources of the used part of the capacity, over nodes that are usable or still
    hold containers (so what runs on a drained or lost node never exceeds the capacity)."""
    utilization_max: int
    """Number of resources, U's upper bound."""
    fairness_loss: float
    """Fairness loss of the last decision."""
    adjustments: int
    decisions: int


def app_rows(
    state: State, now: int, *, ended: bool = True, newest: Mapping[str, Reported] | None = None
) -> list[AppRow]:
    """Return rows in order of arrival; ages are relative to `now` (UTC ns).  `newest` is what apps reported in addition to the
    log."""
    apps = sorted(state.apps.values(), key=lambda app: (app.seq, app.id))
    return [app_row(app, now, newest) for app in apps if ended or not app.ended]


def app_row(app: App, now: int, newest: Mapping[str, Reported] | None = None) -> AppRow:
    placed = sizes(app)
    last = shown(app, newest)
    return AppRow(
        name=app.name,
        id=app.id,
        user=app.user,
        phase=app.phase,
        containers=sum(placed.values()),
        n_min=app.n_min,
        n_max=app.n_max,
        nodes=len(placed),
        generation=app.generation,
        step=last.step,
        loss=last.loss,
        samples_per_s=last.samples_per_s,
        adjustments=app.adjustments,
        failures=app.failures,
        age_s=round(max(0, (app.ended_at or now) - app.submitted_at) / SECOND, 3),
        note=note_of(app, now),
        loss_is=last.loss_is,
        progress_age_s=round(max(0, now - last.at) / SECOND, 3) if last.at and not app.ended else None,
        sweep=app.spec.group.name if app.spec.group is not None else "",
        loss_step=last.loss_step,
    )


def note_of(app: App, now: int) -> str:
    """Return what people should know of an app apart from figures: why it ended, waits, or has less than it could use."""
    if app.ended:
        return app.end_reason
    if note := _early_end(app) or delay_shown(app, now):
        return note
    return reason.text if (reason := reason_of(app, now)) is not None else _builds(app)


def _early_end(app: App) -> str:
    """Return which container of the partition has ended first, while others run; "" for none."""
    current = app.current
    if current is None or not current.exited or current.exited == len(current.containers):
        return ""
    ended = [container for container in current.containers.values() if container.state == "exited"]
    first = min(ended, key=lambda container_ended: (container_ended.exited_at, container_ended.slot))
    how = f"exit code {first.exit_code}" if first.exit_code is not None else first.reason.replace("_", " ")
    left = len(current.containers) - len(ended)
    return f"slot {first.slot} on {first.node} has ended ({how}), and {left} of {len(current.containers)} still run"


def _builds(app: App) -> str:
    """Return what an app does that has its place and has not started, if that may take long."""
    waits = app.spec.builds and app.phase in ("starting", "adjusting")
    released = app.current is not None and bool(app.current.released_at) and not app.current.started_at
    return "builds its environment where it is not there yet" if waits and released else ""


def sizes(app: App) -> dict[str, int]:
    """Return the app's containers by node in its present place; empty if it waits or has ended."""
    return app.current.by_node() if app.current is not None and not app.ended else {}


def node_rows(state: State) -> list[NodeRow]:
    """Return rows by name.  Examines each app once instead of once per node, which matters on large clusters."""
    held: dict[str, list[tuple[App, int]]] = {}
    for app in state.apps.values():
        for node, count in room_held(app).items():
            held.setdefault(node, []).append((app, count))
    return [_node_row(state, state.nodes[name], held.get(name, [])) for name in sorted(state.nodes)]


def _node_row(state: State, node: Node, held: list[tuple[App, int]]) -> NodeRow:
    used: dict[str, int] = {}
    for app, count in held:
        for name, amount in app.demand.items():
            used[name] = used.get(name, 0) + amount * count
    return NodeRow(
        name=node.id,
        address=node.address,
        condition=node.shown,
        runtime=node.runtime,
        containers=sum(count for _, count in held),
        capacity=node.capacity,
        used={name: used.get(name, 0) for name in node.capacity},
        labels=node.labels,
        note=_refused(node),
        checkpoints=node.checkpoints,
        trouble=trouble(state, node)
        or trouble_with_fitness(node)
        or "; ".join(
            trouble_text for trouble_text in (with_remedy(state, node), trouble_with_volumes(node)) if trouble_text
        ),
        volumes=shown_volumes(node),
        suspect=_suspect(node),
    )


def _suspect(node: Node) -> SuspectRow | None:
    suspect = node.suspect
    if suspect is None:
        return None
    return SuspectRow(
        since=suspect.since,
        apps=suspect.apps,
        failures=suspect.failures,
        reason=suspect.reason,
        probe_at=suspect.probe_at,
        failed_probes=suspect.failed_probes,
        probe=suspect.probe,
    )


def describe_node(state: State, node: Node, now: int) -> dict[str, Any]:
    """Everything about one node at `now` (UTC ns), as plain maps."""
    held = [(app, room_held(app).get(node.id, 0)) for app in state.apps.values()]
    return {
        **msgspec.to_builtins(_node_row(state, node, [(app, count) for app, count in held if count])),
        "failed": msgspec.to_builtins(failed_here(state, node, now)),
        "containers_now": [
            {"app": app.id, "generation": generation.number, **container_row(container)}
            for app in state.apps.values()
            for generation in app.generations.values()
            for container in generation.all_containers()
            if container.node == node.id
        ],
    }


def _refused(node: Node) -> str:
    """Describe the refused machine while the name is held: once it is free, that machine asks again and gets it."""
    if node.refused is None:
        return ""
    until = "until it has left" if node.condition == "up" else "until its lease has ended"
    return f"another machine at {node.refused.address} waits for this name {until}" if not node.gone else ""


def room_held(app: App) -> dict[str, int]:
    """Return how much room each node must keep for an app: for containers that may run there, or are placed there."""
    running: dict[str, int] = {}
    for generation in app.generations.values():
        if generation.released:
            for container in generation.all_containers():
                if container.state != "exited":
                    running[container.node] = running.get(container.node, 0) + 1
    placed = sizes(app)
    return {node: max(running.get(node, 0), placed.get(node, 0)) for node in dict.fromkeys([*running, *placed])}


class Leaving(msgspec.Struct, frozen=True):
    """What a drained node still holds of one app."""

    name: str
    id: str
    containers: int
    next: str
    """Next step in words."""


def leaving(state: State, node: str) -> list[Leaving]:
    """Return everything that may run there or is placed there, in order of arrival; empty for an empty node."""
    apps = sorted(state.apps.values(), key=lambda app: (app.seq, app.id))
    return [
        Leaving(app.name, app.id, held, _next(state, app, node))
        for app in apps
        if (held := room_held(app).get(node, 0))
    ]


def _next(state: State, app: App, node: str) -> str:
    current = app.current
    if app.ended:
        return f"{app.ended}, and being stopped"
    if current is None:
        reason = reason_of(app, state.time)
        return "being stopped" + (f", then it waits: {reason.text}" if reason is not None else "")
    if node not in current.by_node():
        places = ", ".join(f"{other} ({count})" for other, count in current.by_node().items())
        return f"being stopped, and continues at {places}"
    lost = [other for other in current.by_node() if other in state.nodes and state.nodes[other].condition == "lost"]
    if lost:
        return f"stays until {', '.join(lost)} is heard again or its lease has ended"
    return "stays until it has settled" if not app.settled else "is moved by the next decision"


def summary(state: State) -> Summary:
    placed = [(app, sizes(app)) for app in state.apps.values()]
    holding = {name for _, by_node in placed for name in by_node}
    counted = [node for node in state.nodes.values() if node.usable or node.id in holding]
    names = sorted({name for node in counted for name in node.capacity})
    total = {name: sum(node.capacity.get(name, 0) for node in counted) for name in names}
    used = dict.fromkeys(names, 0)
    for app, by_node in placed:
        count = sum(by_node.values())
        for name, amount in app.demand.items():
            if name in used:
                used[name] += amount * count
    return Summary(
        seq=state.seq,
        nodes=sum(1 for node in state.nodes.values() if node.usable),
        apps=sum(1 for app in state.apps.values() if not app.ended),
        utilization=sum(used[name] / total[name] for name in names if total[name]),
        utilization_max=len(names),
        fairness_loss=state.figures.fairness_loss,
        adjustments=sum(app.adjustments for app in state.apps.values()),
        decisions=state.figures.decisions,
    )


def paused_text(state: State) -> str:
    """Return who paused scheduling and why, in words; "" while decisions are made."""
    pause = state.paused
    if pause is None:
        return ""
    return f"scheduling is paused by {pause.by}" + (f": {pause.reason}" if pause.reason else "")


def describe(
    app: App, now: int, state: State | None = None, newest: Mapping[str, Reported] | None = None
) -> dict[str, Any]:
    """Everything about one app, as plain maps for `-o json|yaml` and for the text form; with its `state`, also what the policy
    in force has to do with it.  `newest` is what apps reported in addition to the log."""
    failure = state.policy_failure if state is not None else None
    row = msgspec.to_builtins(app_row(app, now, newest))
    generation = app.generations.get(app.generation)
    return {
        **row,
        "submitted_at": app.submitted_at,
        "ended_at": app.ended_at or None,
        "kept_until": (kept_until(state.settings, app) or None) if state is not None else None,
        "weight": app.weight,
        "demand": {name: humanize(name, amount) for name, amount in app.demand.items()},
        "require": app.spec.require,
        "environment": _environment(app),
        "volumes": {
            volume.name: "read-only" if volume.read_only else "writable" for volume in volumes_of(app.spec.volumes)
        },
        "placement": app.spec.placement,
        "gang": app.spec.gang,
        "elastic": app.spec.elastic,
        "resizable": app.spec.resizable,
        "kept_whole": "" if app.ended or (kept := kept_whole(app, now)) is None else kept.text,
        **_revisions(app, generation),
        "membership": generation.membership if generation is not None and app.spec.elastic else None,
        "epoch": app.epoch or None,
        "checkpoint": app.checkpoint,
        "doubt": doubt_shown(app),
        "origin": _origin(app),
        "skipped_lines": msgspec.to_builtins(app.skipped_lines) if app.skipped_lines is not None else None,
        "notes": msgspec.to_builtins(app.notes),
        "lost_steps": app.lost_steps,
        "reports_progress": app.reports_progress,
        "held": "" if app.ended else bounds(app, now).why,
        "asked": "" if app.ended else bounds(app, now).request,
        "code": shown_reason(app, now)[0],
        "hold": hold_shown(app),
        "failed_on": msgspec.to_builtins(failed_where(state, app, now)) if state is not None else [],
        "avoids": avoiding(state, app, now) if state is not None else "",
        "runtime": runtime_shown(app, app.ended_at or now),
        "retries_used": {against: f"{used} of {limit_of(app, against)}" for against, used in app.retries_used.items()},
        "adjust_s": adjust_s(app),
        "served_s": app.served_until(app.ended_at or now) / SECOND,
        "steps": app.spec.steps or None,
        "batch": msgspec.to_builtins(batch_now(app, state)),
        "plan": msgspec.to_builtins(app.plan),
        "workdir": msgspec.structs.asdict(workdir) if (workdir := shipped(app.spec)) is not None else None,
        "policy_failure": msgspec.to_builtins(failure) if failure is not None and not app.ended else None,
        "spec": msgspec.to_builtins(app.spec),
        "containers_now": [
            container_row(container) for container in (generation.all_containers() if generation else [])
        ],
        "adjustments_done": [adjustment(app, index) for index in range(len(app.history))],
    }


_RARE = ("delay", "peer_lost", "brief_ns")
"""Fields of a container that are shown only if they say something."""


def container_row(container: Container) -> dict[str, Any]:
    """Return a container as it is shown."""
    fields: dict[str, Any] = msgspec.to_builtins(container)
    return {
        name: value for name, value in fields.items() if name not in _RARE or (value is not None and value is not False)
    }


def _revisions(app: App, generation: Generation | None) -> dict[str, Any]:
    """Which specs the app has had, and with which it runs."""
    known = app.revisions
    return {
        "revision": app.revision,
        "revision_running": generation.revision if generation is not None else None,
        "revisions": msgspec.to_builtins(known.history) if known is not None else [],
        "next_spec": msgspec.to_builtins(app.next_spec) if app.next_spec is not app.spec else None,
        "restart": msgspec.to_builtins(app.restart) if app.restart is not None else None,
    }


def _origin(app: App) -> str:
    """Return the app from whose checkpoint it started, and the digest of the copied files; "" if it started without
    one."""
    digest = f", files {app.origin_digest}" if app.origin_digest else ""
    return f"{app.spec.origin}{digest}" if app.spec.origin else ""


def _environment(app: App) -> str:
    """Return what is built before an app's command runs, in words; "" if nothing is."""
    spec = app.spec
    if not spec.needs_environment:
        return ""
    parts = [f"Python {spec.python}"] if spec.python else []
    parts += [f"{len(spec.requirements)} requirements"] if spec.requirements else []
    parts += [f"{len(spec.setup)} commands"] if spec.setup else []
    generation = app.generations.get(app.generation)
    if generation is not None and generation.environment_s is not None:
        parts.append(f"built in {generation.environment_s:.1f} s for generation {generation.number}")
    return ", ".join(parts)


def adjustment(app: App, index: int) -> dict[str, Any]:
    """One finished adjustment, with the length of each phase in seconds (None while it is still starting).  Of an app that
    reports progress it lasts until the first step after it."""
    record = app.history[index]
    worked = works_at(record, reports=app.reports_progress)
    stopped = max(record.stopped_at, record.decided_at)
    began = record.prepared_at or record.decided_at
    started = record.started_at or None
    return {
        "from_generation": record.from_generation,
        "to_generation": record.to_generation,
        "revision": record.revision,
        "containers": f"{record.containers_before} -> {record.containers_after}",
        "decided_at": record.decided_at,
        "prepare_s": (began - record.decided_at) / SECOND,
        "stop_s": (stopped - began) / SECOND,
        "wait_s": (record.released_at - stopped) / SECOND,
        "start_s": (started - record.released_at) / SECOND if started else None,
        "work_s": (worked - started) / SECOND if worked and started else None,
        "total_s": (worked - record.decided_at) / SECOND if worked else None,
        "checkpoint": record.checkpoint,
        "lost_steps": record.lost_steps,
        "killed": record.killed,
        "live": record.live,
        "warm_up_s": record.warm_up_s if record.live else None,
        "barrier_s": record.barrier_s if record.live else None,
        "pause_s": record.pause_s if record.live else None,
        "bytes_moved": record.bytes_moved if record.live else None,
    }
