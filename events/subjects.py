"""The NATS subject of each event.

    dorm.<cluster>.<Kind>.<who>                 a fact by a client, operator or agent: four tokens, kept in the log
    dorm.<cluster>.round.master                 all that the master decides
    dorm.<cluster>.LogRotated.master            the master: the log's past lies in an archive
    dorm.<cluster>.report.<node>.NodeReported   heartbeats: five tokens, kept in a stream with an age limit
    dorm.<cluster>.progress.<node>.<app>        progress between two marks on the log: five tokens, in a stream with limits
    dorm.<cluster>.shadow.<policy>.<who>        comparisons of shadows: five tokens, in a stream that no state comes from
    dorm.<cluster>.part.<node>.<n>              a node's part, in pieces: five tokens, of which a stream keeps the last
    dorm.<cluster>.file.<tenant>.<hash>         a part of a shipped folder: five tokens, of which a stream keeps the last
    dorm.<cluster>.ask.<node>.<what>            questions to an agent (container logs): not kept
    dorm.<cluster>.ask.<node>.<what>.<tenant>   the same if identities count: the tenant that is asked about
    dorm.<cluster>.ask.<node>.session.<tenant>.<who>  a person enters a container of this tenant there; `input` for what
                                                follows (`events.sessions`): not kept
    dorm.<cluster>.view.<who>.log               questions for a tenant's view of the log: not kept
    dorm.<cluster>.masters.all.status           a question to all masters, how they are: not kept; `agents.all` to agents

App ids stay in the payload: hundreds of thousands of distinct subjects cost the server memory and time.  Progress is the
exception: its stream forgets, so it has as many subjects as apps worked lately, and its limit for one subject keeps an app
from crowding out the others.  Users and nodes are in the subject, where a server's permissions can check them; a kind is only
believed on its own subject.
"""

from __future__ import annotations

import re
from functools import lru_cache

from events.errors import DormError

_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUBJECT = re.compile(r"[^\s*>.\x00-\x1f\x7f]+(\.[^\s*>.\x00-\x1f\x7f]+)*")
_UNSAFE = re.compile(r"[^A-Za-z0-9_@+=-]")

ROUND, PROGRESS = "round", "progress"
MASTER = "master"
"""Stands for all masters: the last token of the subjects that only they may publish on."""


class ClusterNameError(DormError, ValueError):
    """A cluster's name can't be part of a subject."""

    code = "cluster.name.malformed"


def check_cluster(cluster: str) -> str:
    """Return the name.  Raises ClusterNameError if it can't be part of a subject."""
    if not _CLUSTER.fullmatch(cluster):
        raise ClusterNameError(f"cluster name {cluster[:80]!r}: use 1 to 64 letters, digits, '-' and '_'")
    return cluster


def valid(subject: str) -> bool:
    """Return whether it is a subject to publish on: no empty tokens, no white space, no wildcards."""
    return _SUBJECT.fullmatch(subject) is not None


@lru_cache(maxsize=65536)
def token(who: str) -> str:
    """Return a user or node name as one subject token."""
    return _UNSAFE.sub("_", who)[:64] or "_"


def fact(cluster: str, kind: str, who: str) -> str:
    return f"dorm.{cluster}.{kind}.{token(who)}"


def rounds(cluster: str) -> str:
    return f"dorm.{cluster}.{ROUND}.{MASTER}"


def rotations(cluster: str) -> str:
    """Return the subject of the statements that the log's past lies in an archive (`events.kinds.LogRotated`)."""
    return f"dorm.{cluster}.LogRotated.{MASTER}"


def log_subjects(cluster: str) -> str:
    """Return the pattern of all subjects in the log's stream."""
    return f"dorm.{cluster}.*.*"


def facts_by(cluster: str, who: str) -> str:
    return f"dorm.{cluster}.*.{token(who)}"


def fact_pattern(cluster: str, kind: str) -> str:
    """Return the pattern of all facts of one kind, from any publisher."""
    return f"dorm.{cluster}.{kind}.*"


def report(cluster: str, node: str) -> str:
    return f"dorm.{cluster}.report.{token(node)}.NodeReported"


def reports(cluster: str) -> str:
    return f"dorm.{cluster}.report.*.NodeReported"


def progress(cluster: str, node: str, app: str) -> str:
    return f"dorm.{cluster}.{PROGRESS}.{token(node)}.{token(app)}"


def progress_of(cluster: str, app: str = "*", node: str = "*") -> str:
    """Return the pattern of the progress of one app, or of all, from one node, or from all."""
    app, node = (part if part == "*" else token(part) for part in (app, node))
    return f"dorm.{cluster}.{PROGRESS}.{node}.{app}"


def part(cluster: str, node: str, piece: int | str) -> str:
    """Return the subject of one piece of a node's part; `*` stands for all of them."""
    return f"dorm.{cluster}.part.{token(node)}.{piece}"


def parts(cluster: str) -> str:
    return f"dorm.{cluster}.part.*.*"


def file(cluster: str, tenant: str, name: str) -> str:
    """Return the subject of a part of a shipped folder; `*` stands for all tenants, or for all parts."""
    return f"dorm.{cluster}.file.{tenant if tenant == '*' else token(tenant)}.{name}"


def shadow(cluster: str, policy: str, who: str) -> str:
    return f"dorm.{cluster}.shadow.{token(policy)}.{token(who)}"


def shadows(cluster: str) -> str:
    """Return the pattern of all comparisons."""
    return f"dorm.{cluster}.shadow.*.*"


def ask(cluster: str, node: str, what: str, tenant: str = "") -> str:
    """Return the subject of a question to an agent.  If a server guards subjects, it names whose apps it is about, so that
    the server decides who may ask."""
    return f"dorm.{cluster}.ask.{token(node)}.{what}" + (f".{token(tenant)}" if tenant else "")


def asked_of(cluster: str, node: str, what: str) -> str:
    """Return the pattern of questions to an agent about any tenant's apps."""
    return f"{ask(cluster, node, what)}.*"


def session(cluster: str, node: str, what: str, tenant: str, who: str) -> str:
    """Return the subject on which `who` enters a tenant's container on a node (`what` is `session`), and sends input to
    it (`input`).  A server that guards subjects decides by it who may enter whose containers, and agents know by it who
    does; `*` stands for any node, tenant and person."""
    where, whose, who = (part if part == "*" else token(part) for part in (node, tenant, who))
    return f"dorm.{cluster}.ask.{where}.{what}.{whose}.{who}"


def view(cluster: str, who: str) -> str:
    """Return the subject on which a user asks for the own tenant's view of the log."""
    return f"dorm.{cluster}.view.{token(who)}.log"


def views(cluster: str) -> str:
    """Return the pattern of all questions for views."""
    return f"dorm.{cluster}.view.*.log"


def ask_masters(cluster: str) -> str:
    """Return the subject on which all masters are asked how they are."""
    return f"dorm.{cluster}.masters.all.status"


def ask_agents(cluster: str) -> str:
    """Return the subject on which all agents are asked how they are."""
    return f"dorm.{cluster}.agents.all.status"


@lru_cache(maxsize=65536)
def kind_of(subject: str) -> str:
    """Return the kind that a subject may carry (`Round` for the master's), '' for a subject outside the scheme."""
    parts = subject.split(".")
    if len(parts) == 4:
        if parts[2] == "Round":
            return ""  # Rounds have one subject, which is fenced; on another one any client could decide.
        return "Round" if parts[2] == ROUND and parts[3] == "master" else parts[2]
    if len(parts) == 5 and parts[2] == "report":
        return parts[4]
    if len(parts) == 5 and parts[2] == PROGRESS:
        return "AppProgressed"
    return ""


@lru_cache(maxsize=65536)
def who_of(subject: str) -> str:
    """Return the publisher's token of a subject."""
    parts = subject.split(".")
    return parts[3] if len(parts) >= 4 else ""


def author_of(subject: str, by: str) -> str:
    """Return the author of a record: the name in its body if that is the one of its subject, else the subject's."""
    who = who_of(subject)
    return by if by and token(by) == who else who


@lru_cache(maxsize=65536)
def cluster_of(subject: str) -> str:
    """Return the cluster's name in a subject, '' for a subject outside the scheme."""
    parts = subject.split(".")
    return parts[1] if len(parts) >= 4 and parts[0] == "dorm" else ""


def matches(pattern: str, subject: str) -> bool:
    """Match as NATS does: `*` stands for one token, `>` for one or more at the end."""
    wanted, given = pattern.split("."), subject.split(".")
    for index, part in enumerate(wanted):
        if part == ">":
            return len(given) > index
        if index >= len(given) or part not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


def overlap(pattern: str, other: str) -> bool:
    """Return whether some subject matches both patterns."""
    left, right = pattern.split("."), other.split(".")
    for index in range(max(len(left), len(right))):
        a = left[index] if index < len(left) else ""
        b = right[index] if index < len(right) else ""
        if (a == ">" and b) or (b == ">" and a):
            return True
        if not a or not b or ("*" not in (a, b) and a != b):
            return False
    return True
