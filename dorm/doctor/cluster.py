"""Judges a cluster: its NATS servers and their streams, whether all answer, and where every copy of the log is; its log, its
masters and its agents.  Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from dorm.core.delays import delay_words, delayed
from dorm.core.faults import suspicion
from dorm.core.offers import trouble_with_fitness, trouble_with_volumes
from dorm.core.query.views import paused_text
from dorm.core.shared_folder import trouble
from dorm.core.state import FailedPolicy
from dorm.doctor import findings as f
from dorm.doctor.findings import Finding, note, ok, unknown, wrong
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dorm.client.masters import Leader
    from dorm.core.generation import Delay
    from dorm.core.state import App, Node, State
    from dorm.doctor.findings import Finding
    from events.kinds import RotationFailed
    from events.nats.streams import ClockState, ServerState, StreamState
    from events.requests import AgentStatus, MasterStatus


# --- servers ----------------------------------------------------------------------------------------------------------

_LOG = "DORM-"
"""The prefix of the name of a log's stream; the other streams are next to the log."""
_SLOW_S = 0.25
_ALARM = 0.8
"""The fraction of its limit that a stream may use."""
_AGAIN = "ask again in ten seconds: after a server was lost, the others elect which one answers for the stream"
MOST_AHEAD_S = 2.0
"""Larger differences between clocks confuse people who compare logs; no decision depends on them."""


def judge_servers(servers: Sequence[ServerState]) -> Iterator[Finding]:
    for server in servers:
        if server.error:
            todo = f"look at it: `systemctl status nats` there, and whether {server.address} is reached from here"
            # Further advice of commands, such as another --url, does not apply to a server that belongs to the cluster.
            yield wrong("servers", server.address, f"does not answer: {server.error.partition('; ')[0]}", todo)
            continue
        text = f"NATS {server.version} answers within {server.answers_in_s * 1e3:.0f} ms"
        if server.answers_in_s > _SLOW_S:
            yield wrong("servers", server.name, text, "look at its load, its disk, and the network between")
        else:
            yield ok("servers", server.name or server.address, text)
    versions = sorted({server.version for server in servers if server.version})
    if len(versions) > 1:
        yield note(
            "version", "servers", f"NATS {', '.join(versions)}", "finish the upgrade, one server after the other"
        )


def judge_streams(streams: Sequence[StreamState], servers: int) -> Iterator[Finding]:
    """`servers` is how many of them there are."""
    for stream in streams:
        if stream.error:
            yield unknown("quorum", stream.name, stream.error, _AGAIN)
        elif stream.missing and not stream.name.startswith(_LOG):
            text = "the stream is not there; a cluster that an earlier release made may have another one"
            yield unknown("quorum", stream.name, text)
        elif stream.missing:
            yield wrong(
                "quorum", stream.name, "the stream is gone",
                "put the servers' data back from a backup; start no master before that",
            )  # fmt: skip
        else:
            yield from _copies(stream, servers)
            yield from _room(stream)


def _copies(stream: StreamState, servers: int) -> Iterator[Finding]:
    well = True
    for copy in stream.copies:
        if copy.offline or copy.active_s > 10:
            well = False
            yield wrong(
                "quorum", stream.name, f"the copy on {copy.server} is not heard",
                f"start the NATS server {copy.server} again, before another one fails",
            )  # fmt: skip
        elif not copy.current or copy.lag:
            well, behind = False, f"{copy.lag:,} records behind" if copy.lag else "not current"
            yield wrong(
                "quorum", stream.name, f"the copy on {copy.server} is {behind}",
                f"wait until it has caught up, and restart no other server before; else look at {copy.server}'s log",
            )  # fmt: skip
    if len(stream.copies) < stream.replicas:
        well = False
        yield wrong(
            "quorum", stream.name, f"{len(stream.copies)} of {stream.replicas} copies are placed",
            "see that as many NATS servers run and know each other",
        )  # fmt: skip
    if 2 * stream.heard <= stream.replicas:
        yield wrong(
            "quorum", stream.name, f"{stream.heard} of {stream.replicas} copies are heard: nothing can be stored",
            "start the missing NATS servers; apps run on as long as their nodes' leases",
        )  # fmt: skip
    elif well and stream.replicas == 1 and servers >= 3:
        yield note(
            "quorum", stream.name, f"one copy, on {stream.copies[0].server}, though there are {servers} servers",
            "`dorm master --replicas 3` raises it",
        )  # fmt: skip
    elif well:
        where = ", ".join(copy.server for copy in stream.copies)
        yield ok("quorum", stream.name, f"{_copies_of(stream.replicas)}, all current: {where}")


def _copies_of(count: int) -> str:
    return "1 copy" if count == 1 else f"{count} copies"


def _room(stream: StreamState) -> Iterator[Finding]:
    if stream.limit is None or not stream.name.startswith(_LOG):
        return  # In other streams, new records replace the oldest.
    text = f"takes {stream.size:,} of {stream.limit:,} bytes"
    if stream.size >= _ALARM * stream.limit:
        todo = "make room on the servers' disks and raise the limit with `dorm log limit`; a full log stops the cluster"
        yield wrong("disk", stream.name, text, todo)
    else:
        yield ok("disk", stream.name, text)


def judge_clock(check: str, about: str, clock: ClockState | None, whose: str) -> Finding:
    """Judge another clock; `whose` it is compared with."""
    if clock is None:
        return unknown(check, about, "its clock is not known")
    text = f"its clock is {abs(clock.ahead_s):.1f} s {'ahead of' if clock.ahead_s > 0 else 'behind'} {whose}"
    if abs(clock.ahead_s) - clock.within_s > MOST_AHEAD_S:
        return wrong(check, about, text, "set up time synchronization (chrony, systemd-timesyncd) on both")
    return ok(check, about, text)


# --- cluster ----------------------------------------------------------------------------------------------------------

Status = TypeVar("Status")
MOST_BEHIND = 10_000
"""Records that a master may have to fold before it could lead."""
_SILENT_S = 30.0
_ENDED = {"remove": "has failed to remove a container", "report": "has failed to report the end of a container"}
_MARGIN = 0.5
"""The fraction of a node's lease that should remain between two heartbeats."""
_RELEASE = re.compile(r"dorm ([0-9]+)\.([0-9]+)")


class Asked(NamedTuple, Generic[Status]):
    """A process that answered."""

    status: Status
    clock: ClockState


def judge_masters(leader: Leader, masters: Sequence[Asked[MasterStatus]] | None) -> Iterator[Finding]:
    """Judge who leads and who follows.  `masters` is None if they may not be asked."""
    if leader.condition == "leading":
        yield f.ok("masters", leader.leader, f"leads since epoch {leader.epoch}")
    elif leader.condition == "taking over":
        yield f.note("masters", leader.leader, "has the lease, and is about to lead")
    elif leader.condition == "unknown" and leader.last and masters is None:
        todo = "upgrade its master, or start one: those of this release have a lease"
        yield f.unknown("masters", leader.last, "whether it leads is not known: no master has a lease", todo)
    elif leader.condition == "unknown" and any(master.status.leading for master in masters or ()):
        yield f.unknown("masters", "lease", "a master says that it leads, and there is no lease", "ask again")
    else:
        text = f"nobody leads; the last one was {leader.last}" if leader.last else "nobody ever led"
        todo = "start one with `dorm master`, or read the log of one that runs: it says why it does not lead"
        yield f.wrong("masters", "lease", text, todo)
    if masters is None:
        yield f.unknown(
            "masters", "followers", "masters may not be asked with these credentials, or are of an older release"
        )
        return
    following = [master for master in masters if not master.status.leading]
    if not following and any(master.status.leading for master in masters):
        todo = "run `dorm master` on a second machine, so that another one takes over"
        yield f.note("masters", "followers", "no other master follows", todo)
    for master in masters:
        yield from _master(master)


def _master(answer: Asked[MasterStatus]) -> Iterator[Finding]:
    status = answer.status
    lag, name = status.lag, status.name
    if lag is None:
        yield f.wrong("lag", name, "the log does not answer it", "look at the network between it and the NATS servers")
    elif lag > MOST_BEHIND:
        yield f.wrong("lag", name, f"{lag:,} records are still to be folded", "wait, or look at its load")
    else:
        yield f.ok("lag", name, f"has folded all but {lag} records")
    for disk in status.disks:
        yield from f.disks(name, disk)


def judge_nodes(state: State, agents: Mapping[str, Asked[AgentStatus]] | None) -> Iterator[Finding]:
    """Judge every node that the log knows.  `agents` are those that answered, None if they may not be asked."""
    if not state.nodes:
        yield f.wrong("nodes", "nodes", "no node has joined", "start one with `dorm agent`")
    for name, node in sorted(state.nodes.items()):
        yield from _node(state, node)
        answer = agents.get(name) if agents is not None else None
        if answer is not None:
            yield from _agent(answer)
        elif agents is not None and node.condition == "up":
            todo = "look at its log; an agent of an earlier release does not answer"
            yield f.unknown("nodes", name, "its agent did not answer", todo)
    if agents is None:
        yield f.unknown("nodes", "agents", "agents may not be asked with these credentials, or are of an older release")


def _node(state: State, node: Node) -> Iterator[Finding]:
    name, shown = node.id, node.shown
    if shown == "lost" and node.lease_ended:
        todo = f"start its agent, or `dorm nodes forget {name}` if it does not come back"
        yield f.wrong("nodes", name, "lost, and its lease has ended: its apps continued elsewhere", todo)
    elif shown == "lost":
        todo = f"start its agent within its lease of {node.lease_s:g} s, or what runs there is given up"
        yield f.wrong("nodes", name, "lost: its agent is not heard", todo)
    elif shown == "unmounted":
        yield f.wrong("mount", name, trouble(state, node), "mount the shared folder of checkpoints there")
    elif shown == "unfit":
        todo = "mend that; the node takes containers again by itself"
        yield f.wrong("nodes", name, trouble_with_fitness(node).partition(": ")[2] or "takes nothing new", todo)
    elif shown == "left":
        yield f.note("nodes", name, "has left", f"`dorm nodes forget {name}` if it does not come back")
    elif shown == "suspect":
        yield f.wrong("nodes", name, suspicion(state, node), f"repair it, then `dorm nodes trust {name}`")
    elif shown in ("draining", "maintenance"):
        yield f.note(
            "nodes", name, f"in {shown}" if shown == "maintenance" else "drained", f"`dorm nodes up {name}` ends it"
        )
    else:
        yield f.ok("nodes", name, "up")
    if not node.gone and (missing := trouble_with_volumes(node)):
        yield f.wrong("mount", name, missing, "mount it there, or start the agent without that --volume")
    if node.refused is not None and not node.gone:
        yield f.wrong(
            "nodes", name, f"another machine at {node.refused.address} asks for its name",
            "give that machine a name of its own (--name), or stop this one's agent",
        )  # fmt: skip


def _agent(answer: Asked[AgentStatus]) -> Iterator[Finding]:
    status = answer.status
    name = status.node
    if not status.joined:
        yield f.wrong("nodes", name, "its agent runs and has not joined", "the agent's log says what it waits for")
        return
    left = status.lease_left_s
    text = f"its lease lasts {left:.0f} of {status.lease_s:g} s"
    if left < _MARGIN * status.lease_s:
        yield f.wrong(
            "lease", name, text, "its heartbeats are not stored in time: look at the network and the servers' disks"
        )
    else:
        yield f.ok("lease", name, text)
    if status.silence_s > _SILENT_S:
        todo = "look at it there: `systemctl status docker`"
        yield f.wrong(
            "engine", name, f"the engine ({status.runtime}) has not answered for {status.silence_s:.0f} s", todo
        )
    else:
        yield f.ok("engine", name, f"the engine ({status.runtime}) answered {status.silence_s:.0f} s ago")
    if status.pending > 100:
        yield f.wrong(
            "lag", name, f"{status.pending} facts wait to be stored", "look at the NATS servers: the log takes nothing"
        )
    for why in status.gpus:
        todo = "look at `nvidia-smi -L` there, and name each card by its UUID (--gpu)"
        yield f.wrong("gpu", name, f"{why}; apps do not get it", todo)
    if status.detected:
        yield f.ok("capacity", name, status.detected)
    for disk in status.disks:
        yield from f.disks(name, disk)
    for late in status.delays:
        if late.failing and late.doing in _ENDED:  # The log's state has the others.
            text = f"it {_ENDED[late.doing]} of {late.app} for {late.for_s:.0f} s: {late.reason}"
            yield f.wrong("starts", name, text, "look at its engine, and at the log of its agent")
    if status.processes:
        yield f.processes(name, status.processes_free, status.processes, status.processes_of)


def judge_delays(state: State) -> Iterator[Finding]:
    """Judge what nodes do for containers again and again, as the log says: by node and reason, however many containers
    wait for the same."""
    delays: dict[tuple[str, str, str], list[tuple[App, Delay]]] = {}
    for app, container, delay in delayed(state):
        if delay.failing:
            delays.setdefault((container.node, delay.doing, delay.reason), []).append((app, delay))
    for (node, _, reason), every in sorted(delays.items()):
        app, first = min(every, key=lambda each: each[1].since)
        more = f" and {len(every) - 1} more" if len(every) > 1 else ""
        lasted = max(0, state.time - first.since) // SECOND
        text = f"{app.name}{more}: {delay_words(node, first)} (for {lasted} s at least)"
        yield f.wrong("starts", node, text, _cure(node, reason))


_CURES = (
    (re.compile(r"no space left|disk quota", re.IGNORECASE), "make room there, or free inodes (`df -h`, `df -i`)"),
    (re.compile(r"read-only file system", re.IGNORECASE), "see why it is read-only (`dmesg`), and mount it writable"),
    (
        re.compile(r"resource temporarily unavailable|cannot allocate memory|too many open files", re.IGNORECASE),
        "raise the agent's limits of processes and files (`systemctl show -p TasksMax dorm-agent`, `ulimit -u`)",
    ),
)
"""Advice by the system's message."""


def _cure(node: str, reason: str) -> str:
    known = next((todo for pattern, todo in _CURES if pattern.search(reason)), "")
    return (
        f"{known or 'look at its engine, and at the log of its agent'}; `dorm drain {node}` keeps apps away meanwhile"
    )


def judge_settings(state: State) -> Iterator[Finding]:
    """Judge the settings in force."""
    failed = state.policy_failure
    if isinstance(failed, FailedPolicy):
        todo = f"`dorm policy show` says more; `dorm policy set policy=dorm` takes another policy ({failed.code})"
        yield f.wrong("settings", failed.policy, f"the policy gives no usable answer: {failed.reason}", todo)
    if state.paused is not None:
        yield f.note("settings", "scheduling", paused_text(state), "`dorm resume` continues")
    if state.refused_changes:
        last = state.refused_changes[-1]
        yield f.note(
            "settings",
            last.by,
            f"a change of settings was refused: {last.reason}",
            "`dorm policy show` says what is in force",
        )


def judge_rotation(failures: Sequence[RotationFailed]) -> Iterator[Finding]:
    """Judge the failures of rotations since the newest cut, in order: a cut makes up for those before it.  A request that came
    too early says nothing about the others."""
    failed = next((failure for failure in reversed(failures) if not failure.in_vain), None)
    if failed is None:
        return
    todo = "nothing is lost, and the stream grows; once this is mended, `dorm log rotate` tries again at once"
    yield f.wrong("rotation", "log", f"the log was not rotated: {failed.reason}", todo)


def judge_clocks(about: Sequence[tuple[str, ClockState]]) -> Iterator[Finding]:
    for name, clock in about:
        yield judge_clock("clock", name, clock, "the clock of this machine")


def judge_versions(builds: Mapping[str, str], own: str) -> Iterator[Finding]:
    """Judge the releases of masters and agents, by name, and of this command."""
    every = {**builds, "this command": own}
    releases = sorted({release for build in every.values() if (release := _release(build)) is not None})
    if not releases:
        return
    low, high = releases[0], releases[-1]
    listed = ", ".join(f"{name}: {build}" for name, build in sorted(every.items()))
    if high[0] != low[0] or high[1] - low[1] > 1:
        todo = "upgrade the oldest first to a release next to the newest: masters, then agents"
        yield f.wrong("version", "releases", f"releases further apart than one ({listed})", todo)
    elif len(set(every.values())) > 1:
        yield f.note("version", "releases", f"several releases ({listed})", "finish the upgrade: masters, then agents")
    else:
        yield f.ok("version", "releases", own)


def _release(build: str) -> tuple[int, int] | None:
    match = _RELEASE.match(build)
    return (int(match[1]), int(match[2])) if match is not None else None
