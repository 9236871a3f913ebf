"""`dorm doctor`: what is wrong, and what to do.

Commands of those who keep a cluster well.

doctor    what is wrong, and what to do
nodes     list nodes, take them out for maintenance, forget them, trust them again
requests  drain, pause, resume"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, Target
from dorm.cli.errors import FAILED
from dorm.cli.output import Format, Output, console, counted, print_table, show_document
from dorm.local.home import home, key_file
from events.log.records import LogError
from events.requests import AgentStatus, MasterStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dorm.client.masters import Leader
    from dorm.core.state import State
    from dorm.doctor.cluster_findings import Asked
    from dorm.doctor.findings import Finding
    from dorm.doctor.machine_findings import NodeHere
    from events.nats.connection import Connection

Status = TypeVar("Status", MasterStatus, AgentStatus)
_CONNECT_S = 5.0
_ANSWER_S = 2.0


@command()
async def doctor(
    cx: Cluster,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also list checks that pass.")] = False,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of this machine's node; default: the node whose unit is installed here, else the host name.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(envvar="DORM_DATA", help="Folder of this machine's node, as its agent uses it.")
    ] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Shared checkpoint folder, as this machine's agent uses it.")
    ] = None,
    api: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Also look at the certificate of the API at this address; may be repeated."),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Diagnose a cluster and say what to do; exit code 1 if something is wrong.

    It checks with the NATS servers, masters and agents whether all answer, where
    every copy of the log is and whether it is complete, who leads and how closely
    the others follow, nodes and their leases, clocks, releases, disks, mounts and
    settings. It warns 30 days before a certificate ends: of the NATS servers, the
    cluster's authority, each API on this machine, and each that --api names. On a
    node's own machine, it also checks the folders, the mount, the ports and the
    engine there, even if no server answers.

    [bold]Examples[/]

      dorm doctor

      dorm doctor --all -o json | jq -r '.findings[] | select(.level == "wrong") | .todo'

      dorm doctor --api https://lab.example:4280

      dorm doctor --node gpu-7 --data /srv/gpu-7 --checkpoints /mnt/shared/dorm
    """

    from dorm.doctor.findings import gravest_first

    target = cx.target()
    looked = gravest_first(await _look(target, _here(node, data, checkpoints), api or []))
    _show(target, looked, output, every=every)
    if any(finding.level == "wrong" for finding in looked):
        raise typer.Exit(FAILED)


def _here(node: str | None, data: Path | None, checkpoints: Path | None) -> NodeHere | None:
    """Return the node of this machine, None if there is none: the named one, or the one that a unit here starts."""
    from dorm.deploy.installing import installed_agent
    from dorm.doctor.machine_findings import NodeHere

    unit = installed_agent(Path("/")) if (node, data) == (None, None) else None
    if unit is not None:
        return NodeHere(unit.name, Path(unit.data), (checkpoints or Path(unit.checkpoints)).absolute())
    name = node or socket.gethostname().split(".")[0]
    root = (data or home() / "nodes" / name).absolute()
    if not root.exists() and node is None and data is None:
        return None
    return NodeHere(name, root, (checkpoints or home() / "checkpoints").absolute())


async def _look(target: Target, here: NodeHere | None, apis: Sequence[str]) -> list[Finding]:
    from dorm.doctor.findings import wrong
    from dorm.doctor.machine_findings import judge_master, judge_node

    state: State | None = None
    looked = await _certificates(target, apis)
    try:
        connection = await target.connection("dorm-doctor", timeout=_CONNECT_S)
    except LogError as error:
        todo = "start the NATS servers, or see whether this machine reaches them"
        looked.append(wrong("servers", target.url, str(error), todo))
    else:
        try:
            state, more = await _cluster(connection)
            looked += more
        finally:
            await connection.close()
    if here is not None:
        looked += await judge_node(here, state)
    key = target.seal_key() or key_file(target.cluster)
    if key.exists():
        looked += await judge_master(key.parent)
    return looked


async def _certificates(target: Target, apis: Sequence[str]) -> list[Finding]:
    """Look at the certificates that are known without a NATS server: the authority's, files on this machine, and the APIs'."""
    from dorm.doctor import expiry as c

    own = await asyncio.to_thread(target.read)
    todo = "remove ca.pem and ca.key from the folder of keys, and make the keys again: users and nodes need new credentials"
    seen = [c.parsed("authority", "the cluster's own certificate", own.ca, todo)] if own is not None and own.ca else []
    here = await asyncio.to_thread(c.apis_here)
    what, renew = "the API's certificate", "renew the file of its --tls-cert; it is used within seconds"
    files = [(Path(file), what, renew) for api in here for file in api.files]
    seen += await asyncio.to_thread(lambda: c.in_files([*_files(target), *files]))
    where = dict.fromkeys([*apis, *(api.url for api in here if api.url)])
    seen += await asyncio.gather(*(c.shown_at(url, what, renew) for url in where))
    return list(c.judge_ends(dict.fromkeys(seen), time.time_ns()))


def _files(target: Target) -> Iterator[tuple[Path, str, str]]:
    """Yield the certificates that an admin's folder of keys, and `dorm deploy install`, may have put on this machine."""
    from dorm.deploy import layout

    again = "run `dorm deploy keys` on the admin's machine, and `dorm deploy install` here"
    yield Path(layout.KEYS, "server.pem"), "the NATS server's certificate", again
    yield Path(layout.API, "server.pem"), "the API's certificate", again
    key = target.seal_key()
    if key is not None:
        made = "run `dorm init` again, or `dorm deploy keys` and `dorm deploy install`, which renew it"
        for file in sorted(key.parent.glob("server*.pem")):
            yield file, "a NATS server's certificate", made


async def _cluster(connection: Connection) -> tuple[State | None, list[Finding]]:
    """Look at everything that a connection reaches."""
    from dorm.client.client import Client
    from dorm.doctor import cluster_findings, expiry
    from dorm.doctor import cluster_findings as servers
    from dorm.doctor.findings import wrong
    from dorm.local.announced import BUILD
    from events import subjects

    # All at once: where servers are away, each of these waits for its own time limit.
    (every, streams, clock), danger, masters, agents = await asyncio.gather(
        connection.inspect(),
        _endangered(connection),
        _ask(connection, subjects.ask_masters(connection.cluster), MasterStatus),
        _ask(connection, subjects.ask_agents(connection.cluster), AgentStatus),
    )
    looked = [*servers.judge_servers(every), *servers.judge_streams(streams, len(every))]
    looked.append(servers.judge_clock("clock", "NATS server", clock, "the clock of this machine"))
    renewed = "run `dorm init` again, or `dorm deploy keys` and `dorm deploy install`; the server reads it on SIGHUP"
    looked += expiry.judge_ends(
        [
            expiry.parsed(server.name or server.address, "the NATS server's certificate", server.certificate, renewed)
            for server in every
            if server.certificate
        ],
        time.time_ns(),
    )
    looked += danger
    try:
        client = Client(connection.log, connection.bus, connection.cluster, connection=None)
        state = await client.state()
        leader = await _leader(connection, state)
    except LogError as error:
        looked.append(wrong("log", "log", str(error), "start the missing NATS servers"))
        return None, looked
    by_node = {agent.status.node: agent for agent in agents} if agents is not None else None
    looked += [*cluster_findings.judge_masters(leader, masters), *cluster_findings.judge_nodes(state, by_node)]
    looked += [*cluster_findings.judge_delays(state), *cluster_findings.judge_settings(state)]
    if state.known is not None:
        looked += expiry.judge_tokens(state.known.tokens.values(), time.time_ns())
    looked += await rotation_findings(connection)
    answered = [(answer.status.name, answer) for answer in masters or ()] + [
        (answer.status.node, answer) for answer in agents or ()
    ]
    looked += cluster_findings.judge_clocks([(name, answer.clock) for name, answer in answered])
    looked += cluster_findings.judge_versions({name: answer.status.build for name, answer in answered}, BUILD)
    return state, looked


async def _endangered(connection: Connection) -> list[Finding]:
    from dorm.doctor.findings import unknown, wrong

    try:
        danger = await connection.endangered()
    except LogError as error:
        return [unknown("quorum", "log", f"whether the log's copies are compressed is not known: {error}")]
    return [wrong("quorum", "log", danger, "do so before the next restart of a server")] if danger else []


async def rotation_findings(connection: Connection) -> list[Finding]:
    """Look at the rotations that failed since the last one that succeeded."""
    from dorm.doctor.cluster_findings import judge_rotation
    from dorm.doctor.findings import unknown
    from events import subjects
    from events.codec import decode
    from events.kinds import RotationFailed

    stream, failures = connection.stream, list[RotationFailed]()
    failed = subjects.fact(connection.cluster, RotationFailed.__name__, subjects.MASTER)
    try:
        cut = await stream.last_on(subjects.rotations(connection.cluster))
        async with contextlib.aclosing(
            stream.read(after=cut.seq if cut is not None else 0, subjects=[failed])
        ) as batches:
            async for batch in batches:
                failures += (event for record in batch if isinstance(event := decode(record), RotationFailed))
    except LogError as error:
        return [unknown("rotation", "log", f"whether the last rotation failed is not known: {error}")]
    return list(judge_rotation(failures))


async def _leader(connection: Connection, state: State) -> Leader:
    from dorm.cli.master import watch_lease
    from dorm.client.masters import row_of

    first = await connection.leadership.look()
    await watch_lease(connection.leadership, first)
    held = await connection.leadership.look()
    return row_of(state, held, await connection.leadership.written_at(), time.time_ns(), seen=held != first)


async def _ask(connection: Connection, subject: str, kind: type[Status]) -> list[Asked[Status]] | None:
    """Ask everyone on a subject; None if these credentials may not.  Answers that cannot be read are left out."""
    from dorm.doctor.cluster_findings import Asked
    from events.nats.streams import compared

    try:
        answers = await connection.everyone(subject, wait_s=_ANSWER_S)
    except LogError:
        return None
    judged = []
    for answer in answers:
        try:
            status = msgspec.json.decode(answer.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        judged.append(Asked(status, compared(status.at / 1e9, answer.before, answer.after)))
    return judged


def _show(target: Target, looked: list[Finding], output: Format, *, every: bool) -> None:
    count = {
        level: sum(1 for finding in looked if finding.level == level) for level in ("wrong", "unknown", "note", "ok")
    }
    if output in (Format.json, Format.yaml):
        document = {
            "cluster": target.cluster,
            **count,
            "findings": [msgspec.to_builtins(finding) for finding in looked],
        }
        show_document(document, output)
        return
    shown = [msgspec.to_builtins(finding) for finding in looked if every or finding.level != "ok"]
    if shown:
        columns = [("LEVEL", "level"), ("CHECK", "check"), ("ABOUT", "about"), ("FOUND", "text"), ("TO DO", "todo")]
        print_table(shown, columns)
        console.print()
    more = "" if every else "; --all lists the checks that pass"
    console.print(
        Text(
            f"{counted(count['wrong'], 'thing')} wrong, {count['unknown']} unknown, {counted(count['ok'], 'check')} well{more}"
        )
    )
