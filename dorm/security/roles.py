"""Roles and their permissions, as data: the kinds of events that each publishes, and its subjects on a NATS server.

    role       account   may
    reader     USERS     read the log, and all containers' output; the reader called `backup` also all shipped folders,
                          the one called `webhooks` also deliver webhooks
    user       USERS     read the own tenant's view of the log, output of its containers and files of its apps; put files in;
                         enter containers; submit apps, change, edit, restart, cancel and retry those of the tenant, and ship
                         folders for them
    operator   USERS     what both may; and drain, forget and trust nodes, pause scheduling, change settings and webhooks, seal
                         the log
    api        USERS     the process of the HTTP API: do what operators may, on behalf of users whom it has identified
    node       NODES     read its own part and the log, and publish facts about itself and its containers, and their progress
    joining    NODES     present the key of one new node, once
    master     LOG       write rounds, the nodes' parts, the lease and snapshots
    admin      LOG       and change identities and streams
    restorer   LOG       write a backup's records into an empty log; exists only while `dorm deploy restore` runs

A server does not check reply subjects against the permissions of the client that asks.  Within one account, a user could
direct the answer to a permitted request to the log's own subjects, or on `$JS.API.STREAM.DELETE…`.  So people and nodes are in
accounts that import single services of the log's account, whose subjects a reply subject cannot name there.

JetStream answers everyone who may ask: `STREAM.MSG.GET` and `DIRECT.GET` have no permissions by subject.  The permission to
read the log covers all of it.  So a plain user may read no stream but the masters' lease.  The processes that serve views
(`replay.tenants`) answer each user on a subject of its own, and agents answer questions about a tenant's containers on a
subject that names the tenant.  Requests for shipped folders, which tenants keep from each other, also name their subjects. A
node reads those of all tenants, by names that cannot be guessed: it learns them from the log.
"""

from __future__ import annotations

import msgspec

from events import kinds as k
from events import subjects as names
from events.copying import FILES, PUT
from events.identities import DELIVERER
from events.nats.access import IMPORTED_API, OWN_API, enrollment, in_log_account, inbox_prefix
from events.nats.leadership import leadership_config
from events.nats.parts_store import parts_config
from events.nats.stores import files_stream, progress_stream, shadow_stream, snapshot_config
from events.nats.streams import all_streams, log_stream, report_stream

LOG, USERS, NODES = "LOG", "USERS", "NODES"
"""The accounts."""
_RESPONSES = "_R_.>"
"""Subjects on which the server receives answers to imported requests; each has its own random subject."""


def _written_by(*writers: k.Writer) -> tuple[str, ...]:
    """Return the kinds that these write as records of their own on the log, in this order.  What a node says about itself
    comes first."""
    kinds = [
        kind for writer in writers for kind in k.EVENTS if writer in kind.KIND.writers and kind.KIND.stored == "log"
    ]
    if writers == ("node",):
        kinds.sort(key=lambda kind: (kind.KIND.on != "node", kind.KIND.writers[0] != "node"))
    return tuple(kind.__name__ for kind in kinds)


_OF_OPERATORS = _written_by("reader", "user", "operator")
_OF_DELIVERERS = _written_by("deliverer")
_OF_NODES = _written_by("node")
PUBLISHES: dict[str, tuple[str, ...]] = {
    "reader": _written_by("reader"),
    "user": _written_by("reader", "user"),
    "operator": _OF_OPERATORS,
    "api": _OF_OPERATORS,
    "node": _OF_NODES,
    "master": (),
    "joining": (),
}
"""The kinds of events that each role publishes in its own name, as they say it (`events.kinds.base.Kind`).  An admin publishes
any kind in its own name; the fold decides which of them count."""
BACKUP = "backup"
"""The user whose identity backups use to read the log and the shipped folders."""
ENTERS = ("user", "operator", "admin")
"""Roles that enter containers; users only those of their tenant. A reader changes nothing, and the API enters containers
for no user."""
_READ_PARTS = ("master", "node", "reader", "operator", "api")


class Access(msgspec.Struct, frozen=True):
    """The subjects of one identity."""

    publish: list[str]
    subscribe: list[str]


class Services(msgspec.Struct, frozen=True):
    """Subjects of one account that others import: requests with one answer, and requests with many."""

    single: list[str]
    many: list[str]


def reading(cluster: str) -> Services:
    """Return the JetStream requests of a reader of the log, in the log's account."""
    log, reports, progress = log_stream(cluster), report_stream(cluster), progress_stream(cluster)
    snapshots, lease = str(snapshot_config(cluster).name), str(leadership_config(cluster).name)
    return Services(
        single=[
            *(f"{OWN_API}.STREAM.INFO.{stream}" for stream in (log, reports, progress, snapshots, lease)),
            *(f"{OWN_API}.STREAM.MSG.GET.{stream}" for stream in (log, reports, progress, snapshots, lease)),
            # The name of a reader's consumer is random, and consumers cannot be listed.
            *(f"{OWN_API}.CONSUMER.CREATE.{stream}.>" for stream in (log, progress)),
            *(f"{OWN_API}.CONSUMER.DELETE.{stream}.*" for stream in (log, progress)),
            f"{OWN_API}.DIRECT.GET.{snapshots}.>",
        ],
        many=[
            *(f"{OWN_API}.CONSUMER.MSG.NEXT.{stream}.*" for stream in (log, progress)),
            f"{OWN_API}.DIRECT.GET.{log}",
        ],
    )


def reading_parts(cluster: str, node: str = "") -> Services:
    """Return the JetStream requests of a reader of the parts of all nodes, or of one, in the log's account.  A consumer is
    bound to the subjects that its creation names, and its name is random.  People have none: the consumers of a stream are
    limited, and a reader who uses them all must not keep a node from its part."""
    stream = str(parts_config(cluster).name)
    info = f"{OWN_API}.STREAM.INFO.{stream}"
    if not node:
        return Services(single=[info], many=[f"{OWN_API}.DIRECT.GET.{stream}"])
    following = _consuming(stream, f"*.{names.part(cluster, node, '*')}")
    return Services(single=[info, *following.single], many=following.many)


def following_parts(cluster: str) -> Services:
    """Return the JetStream requests of masters and all nodes to read parts."""
    stream = str(parts_config(cluster).name)
    following = _consuming(stream, ">")
    return Services(single=[f"{OWN_API}.STREAM.INFO.{stream}", *following.single], many=following.many)


def _consuming(stream: str, created: str) -> Services:
    """Return the requests of a consumer of a stream: `created` is its name and what it reads."""
    return Services(
        single=[f"{OWN_API}.CONSUMER.CREATE.{stream}.{created}", f"{OWN_API}.CONSUMER.DELETE.{stream}.*"],
        many=[f"{OWN_API}.CONSUMER.MSG.NEXT.{stream}.*"],
    )


def shipping(cluster: str, tenant: str = "*") -> Services:
    """Return the JetStream requests, in the log's account, to ship folders for a tenant, or for all.  A consumer lists
    the subjects that its creation names, and its name is random."""
    stream, parts = files_stream(cluster), names.file(cluster, tenant, "*")
    return Services(
        single=[
            *_fetching(cluster, tenant),
            f"{OWN_API}.CONSUMER.CREATE.{stream}.*.{parts}",
            f"{OWN_API}.CONSUMER.DELETE.{stream}.*",
        ],
        many=[f"{OWN_API}.CONSUMER.MSG.NEXT.{stream}.*"],
    )


def _fetching(cluster: str, tenant: str = "*") -> list[str]:
    """Return the JetStream requests of a reader of parts of shipped folders."""
    return [f"{OWN_API}.DIRECT.GET.{files_stream(cluster)}.{names.file(cluster, tenant, '*')}"]


def _limits_of_files(cluster: str) -> str:
    """Return the subject of the cluster's limits for shipped folders; it belongs to no tenant."""
    return names.file(cluster, "_", "limits")


def access(cluster: str, role: str, name: str, tenant: str = "") -> Access:
    """Return what an identity may publish on and listen to.  `tenant` of a user; "" for the tenant named like the user."""
    inbox = f"{inbox_prefix(role, name)}.>"
    if role == "joining":
        return Access([enrollment(cluster, name), _RESPONSES], [inbox])
    services = reading(cluster)
    read = [*services.single, *services.many]
    if role in _READ_PARTS:
        parts = following_parts(cluster) if role == "master" else reading_parts(cluster, name if role == "node" else "")
        read += [*parts.single, *parts.many]
    if role == "master":
        answers = [_RESPONSES, f"{inbox_prefix('admin', '*')}.>"]
        return Access(
            [*read, *_of_masters(cluster), *answers],
            [inbox, names.reports(cluster), names.ask_masters(cluster), names.views(cluster)],
        )
    if role == "restorer":
        return Access([f"{OWN_API}.>", f"dorm.{cluster}.>"], [inbox])
    if role == "admin":
        return Access(
            [
                f"{OWN_API}.>",
                "$JS.ACK.>",
                names.facts_by(cluster, name),
                f"dorm.{cluster}.shadow.*.{name}",
                names.file(cluster, "*", "*"),
                _asking(cluster, "*"),
                *_copying(cluster, role, tenant or name),
                *_entering(cluster, who=name),
                *_status(cluster),
                _RESPONSES,
            ],
            [inbox, enrollment(cluster, "*")],
        )
    author = "*" if role == "api" else name
    publish = [
        subject.replace(OWN_API, IMPORTED_API, 1) for subject in (_of_lease(cluster) if role == "user" else read)
    ]
    publish += [f"dorm.{cluster}.{kind}.{author}" for kind in PUBLISHES[role]]
    if role == "node":
        publish += [each.replace(OWN_API, IMPORTED_API, 1) for each in _fetching(cluster)]
        publish += [names.report(cluster, name), names.progress_of(cluster, node=name)]
        listens = [inbox, names.asked_of(cluster, name, "logs"), names.ask_agents(cluster)]
        listens += [names.asked_of(cluster, name, what) for what in (FILES, PUT)]
        listens += _entering(cluster, node=name)
        return Access([*publish, _RESPONSES], listens)
    publish += [*_status(cluster), *_copying(cluster, role, tenant or name)]
    if role in ("operator", "api"):
        publish += [f"{IMPORTED_API}.STREAM.INFO.{shadow_stream(cluster)}", f"dorm.{cluster}.shadow.*.{author}"]
    if role != "api":
        publish.append(names.view(cluster, name))
    if role == "reader" and name == BACKUP:
        seen = shipping(cluster)
        publish += [each.replace(OWN_API, IMPORTED_API, 1) for each in (*seen.single, *seen.many)]
    if role == "reader" and name == DELIVERER:
        publish += [f"dorm.{cluster}.{kind}.{name}" for kind in _OF_DELIVERERS]
        publish += [each.replace(OWN_API, IMPORTED_API, 1) for each in _delivering(cluster)]
    if role in ("user", "operator"):
        publish += _of_shippers(cluster, role, tenant or name)
    tenant = (tenant or name) if role == "user" else "*"
    if role in ENTERS:
        publish += _entering(cluster, tenant=tenant, who=name)
    return Access([*publish, _asking(cluster, tenant), _RESPONSES], [inbox])


def _delivering(cluster: str) -> list[str]:
    """Return what deliverers ask of JetStream in addition to reading: which places in the log there are, and that a record
    is done.  Readers may make places and read from them."""
    stream = log_stream(cluster)
    return [f"{OWN_API}.CONSUMER.LIST.{stream}", f"$JS.ACK.{stream}.>"]


def _of_shippers(cluster: str, role: str, tenant: str) -> list[str]:
    """Return what a user or operator may publish on to ship folders.  An operator sees what all tenants have."""
    seen = shipping(cluster, tenant if role == "user" else "*")
    requested = [*seen.single, *seen.many, *(_limits_asked(cluster) if role == "user" else [])]
    if role == "operator":
        requested.append(f"{OWN_API}.STREAM.PURGE.{files_stream(cluster)}")
    own = [_limits_of_files(cluster)] if role == "operator" else []
    return [
        names.file(cluster, tenant, "*"),
        *own,
        *(subject.replace(OWN_API, IMPORTED_API, 1) for subject in requested),
    ]


def _limits_asked(cluster: str) -> list[str]:
    return [f"{OWN_API}.DIRECT.GET.{files_stream(cluster)}.{_limits_of_files(cluster)}"]


def _asking(cluster: str, tenant: str) -> str:
    """Return the subjects of requests to agents for the output of a tenant's containers."""
    return f"dorm.{cluster}.ask.*.logs.{tenant}"


def _copying(cluster: str, role: str, tenant: str) -> list[str]:
    """Return the subjects of requests to agents for apps' files, and of uploads to them.  A reader sees what is on the log and
    what containers print.  Files are their tenant's, and operators may read all; each writes only into those of the own
    tenant.  The API lists checkpoints for the users who ask it; it knows which of them may, and acts on behalf of all of them
    anyway."""
    if role == "api":
        return [f"dorm.{cluster}.ask.*.{FILES}.*"]
    if role not in ("user", "operator", "admin"):
        return []
    whose = tenant if role == "user" else "*"
    return [f"dorm.{cluster}.ask.*.{FILES}.{whose}", f"dorm.{cluster}.ask.*.{PUT}.{names.token(tenant)}"]


def _entering(cluster: str, *, node: str = "*", tenant: str = "*", who: str = "*") -> list[str]:
    """Return the subjects for entering containers: the server guarantees the tenant and the user."""
    return [names.session(cluster, node, what, tenant, who) for what in ("session", "input")]


def _of_lease(cluster: str) -> list[str]:
    """Return the requests that everyone may make: which master leads."""
    lease = str(leadership_config(cluster).name)
    return [f"{OWN_API}.STREAM.INFO.{lease}", f"{OWN_API}.STREAM.MSG.GET.{lease}"]


def _status(cluster: str) -> list[str]:
    """Return the subjects of requests for the status of masters and agents."""
    return [names.ask_masters(cluster), names.ask_agents(cluster)]


def _of_masters(cluster: str) -> list[str]:
    bucket = str(leadership_config(cluster).name).removeprefix("KV_")
    snapshots = str(snapshot_config(cluster).name)
    return [
        names.rounds(cluster),
        names.rotations(cluster),
        names.fact(cluster, k.RotationFailed.__name__, names.MASTER),
        f"$KV.{bucket}.master",
        f"dorm.{cluster}.snapshot.>",
        names.parts(cluster),
        f"{OWN_API}.STREAM.MSG.GET.{parts_config(cluster).name}",
        f"{OWN_API}.STREAM.PURGE.{snapshots}",
        # Removal of folders that no app needs any more from the store of shipped folders.
        *(subject for services in [shipping(cluster)] for subject in (*services.single, *services.many)),
        f"{OWN_API}.STREAM.PURGE.{files_stream(cluster)}",
        f"{OWN_API}.STREAM.PURGE.{log_stream(cluster)}",  # Rotation: archived records leave the stream.
        *(f"{OWN_API}.STREAM.INFO.{stream}" for stream in all_streams(cluster)),
        # Webhooks are delivered next to a master: their places in the log are consumers of its account.
        f"{OWN_API}.CONSUMER.*.{log_stream(cluster)}.>",
        f"{OWN_API}.CONSUMER.LIST.{log_stream(cluster)}",
        f"{OWN_API}.INFO",
        "$JS.ACK.>",
    ]


def exported(cluster: str) -> dict[str, dict[str, Services]]:
    """Return what each account exports, by the importing account."""
    read, parts, files = reading(cluster), reading_parts(cluster), shipping(cluster)
    following = following_parts(cluster)
    written = sorted({kind for role in ("user", "operator") for kind in PUBLISHES[role]})
    of_users = [f"dorm.{cluster}.{kind}.*" for kind in written]
    of_users += [f"dorm.{cluster}.{kind}.{DELIVERER}" for kind in _OF_DELIVERERS] + _delivering(cluster)
    of_users += [f"{OWN_API}.STREAM.INFO.{shadow_stream(cluster)}", names.shadows(cluster)]
    of_users += [names.file(cluster, "*", "*"), *files.single, f"{OWN_API}.STREAM.PURGE.{files_stream(cluster)}"]
    of_nodes = [f"dorm.{cluster}.{kind}.*" for kind in _OF_NODES]
    of_nodes += [names.reports(cluster), names.progress_of(cluster)]
    copying = [f"dorm.{cluster}.ask.*.{what}.*" for what in (FILES, PUT)]
    asking = Services([], [_asking(cluster, "*"), *copying, *_entering(cluster), names.ask_agents(cluster)])
    return {
        LOG: {
            USERS: Services(
                [*read.single, *parts.single, *of_users],
                [*read.many, *parts.many, *files.many, names.ask_masters(cluster), names.views(cluster)],
            ),
            NODES: Services(
                [*read.single, *following.single, *_fetching(cluster), *of_nodes],
                [*read.many, *following.many, enrollment(cluster, "*")],
            ),
        },
        NODES: {USERS: asking, LOG: asking},
    }


def account_of(role: str) -> str:
    if in_log_account(role):
        return LOG
    return NODES if role in ("node", "joining") else USERS
