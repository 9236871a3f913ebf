"""`dorm replay`: the log's past, of a live cluster or of an exported file."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.connect import ClusterName, Url
from dorm.cli.errors import Fail, run
from dorm.cli.output import Format, Output, console, show_document, solver_prints_elsewhere
from dorm.cli.source import At, File, log_of, parse_moment, progress_of, warn_if_torn
from dorm.cli.tables import show_app, show_apps, show_containers, show_nodes
from dorm.cli.verdicts import Expect, Jobs, Keys, check_expected, check_keys, jobs_of, show_audit
from dorm.core.state import digest
from dorm.core.views import app_rows, describe, node_rows, summary

if TYPE_CHECKING:
    from dorm.core.state import State

app = typer.Typer(
    help="Look into the log's past: the state at any moment, an audit of every decision, a copy in a file.",
    no_args_is_help=True,
)


@app.command()
def state(
    name: Annotated[str | None, typer.Argument(metavar="[APP|NODE]", help="Only this app or node.")] = None,
    at: At = None,
    file: File = None,
    output: Output = Format.table,
    url: Url = None,
    cluster: ClusterName = None,
) -> None:
    """Show apps and nodes as they were at any moment.

    [bold]Examples[/]

      dorm replay state --at -10m

      dorm replay state --at 2026-11-21T09:00 digits-mlp

      dorm replay state --at 120 --file incident.dorm -o json
    """

    moment = parse_moment(at)

    async def work() -> None:
        from replay.travel import state_at

        async with log_of(file, url, cluster) as log:
            await warn_if_torn(log)
            with progress_of("folding") as report:
                found = await state_at(log, moment, progress=report)
        _show_state(found, name, output)

    run(work())


@app.command()
def verify(
    file: File = None,
    jobs: Jobs = None,
    key: Keys = None,
    expect: Expect = None,
    output: Output = Format.table,
    url: Url = None,
    cluster: ClusterName = None,
) -> None:
    """Fold the log anew and decide every decision again; exit 1 at the first divergence.

    Checked are the log's seals too (`dorm log verify`), and the state's
    invariants after every event. Decisions of a policy, a solver or a build
    that this one doesn't have are counted as not checked.

    [bold]Examples[/]

      dorm replay verify

      dorm replay verify --file incident.dorm --jobs 1 -o json
    """
    keys, expected = check_keys(key), check_expected(expect)

    async def work() -> None:
        from replay.audit import verify as audit

        async with log_of(file, url, cluster, tells_damage=True) as log:
            with progress_of("auditing") as report, solver_prints_elsewhere():
                found = await audit(log, jobs=jobs_of(jobs), keys=keys, expected=expected, progress=report)
        show_audit(found, output)

    run(work())


def _show_state(found: State, name: str | None, output: Format) -> None:
    one = None if name is None else _one(found, name)
    if output in (Format.json, Format.yaml):
        show_document(one or _document(found), output)
        return
    console.print(Text(_headline(found), style="dim"), soft_wrap=True)
    if one is None:
        _show_all(found, output)
    elif "phase" in one:
        show_app(one)
    else:
        show_nodes([row for row in node_rows(found) if row.name == name], output)
        show_containers(one["containers_now"], of_apps=True)


def _show_all(found: State, output: Format) -> None:
    apps, nodes = app_rows(found, found.time), node_rows(found)
    if apps:
        show_apps(apps, output)
    if apps and nodes:
        console.print()
    if nodes:
        show_nodes(nodes, output)
    if not apps and not nodes:
        console.print(Text("no app and no node was known then"))


def _one(found: State, name: str) -> dict[str, Any]:
    """An app, else a node, as plain maps.  Raises Fail."""
    wanted = found.find_app(name)
    if wanted is not None:
        return describe(wanted, found.time)
    if name in found.nodes:
        row = next(row for row in node_rows(found) if row.name == name)
        return {**msgspec.to_builtins(row), "containers_now": _containers_on(found, name)}
    known = [*found.names, *found.nodes]
    hint = f"; there were {', '.join(known[:10])}" if known else "; none had come yet"
    raise Fail(f"at sequence {found.seq} there was no app or node {name!r}{hint}")


def _containers_on(found: State, node: str) -> list[dict[str, Any]]:
    return [
        {"app": owner.id, "generation": generation.number, **msgspec.to_builtins(container)}
        for owner in found.apps.values()
        for generation in owner.generations.values()
        for container in generation.containers.values()
        if container.node == node
    ]


def _document(found: State) -> dict[str, Any]:
    return {
        "seq": found.seq,
        "time": found.time,
        "epoch": found.epoch,
        "digest": digest(found),
        "settings": msgspec.to_builtins(found.settings),
        "summary": msgspec.to_builtins(summary(found)),
        "apps": msgspec.to_builtins(app_rows(found, found.time)),
        "nodes": msgspec.to_builtins(node_rows(found)),
        "counters": msgspec.to_builtins(found.counters),
    }


def _headline(found: State) -> str:
    if not found.seq:
        return "before the first record"
    when = datetime.fromtimestamp(found.time / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return f"sequence {found.seq}, {when} UTC, epoch {found.epoch}, digest {digest(found)}"
