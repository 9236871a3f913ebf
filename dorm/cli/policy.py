"""`dorm policy`: show and change settings, and with `--dry-run` what a change would do to apps and nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete
from dorm.cli.errors import FAILED, USAGE, Fail, report_error
from dorm.cli.output import Format, Output, console, counted, show, show_document, solver_prints_elsewhere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.client.client import Client
    from dorm.core.query.in_force import Setting
    from dorm.core.query.trying import ResizedApp, Touched
    from dorm.core.settings import Plugins
    from dorm.core.state import Settings, State
    from events.kinds import PolicyChanged, PolicyPlugin


# --- what a change would do -------------------------------------------------------------------------------------------

_NAMED = 8


async def show_dry_run(
    connected: Client, state: State, change: PolicyChanged, output: Format, differences: list[str]
) -> bool:
    """Show it; return whether the change would be accepted.  `differences` are the values that it would change, in words."""
    from dorm.core.query.trying import document, resized, touched

    now = max(state.time, time.time_ns())
    trial = touched(state, change, await _heard(connected, state), now)
    with solver_prints_elsewhere():
        apps = [] if trial.refused else resized(state, change, trial.unmounted, now)
    if output in (Format.json, Format.yaml):
        show_document(document(trial, differences, apps), output)
    else:
        for line in _lines(trial, differences, apps):
            console.print(Text(line))
    return not trial.refused


async def _heard(connected: Client, state: State) -> dict[str, int]:
    """Return when each node was last heard (UTC ns), by its stored heartbeats."""
    heard = {}
    for name, node in state.nodes.items():
        if node.condition == "up":
            heard[name] = max(node.up_at, await connected.last_heard(name))
    return heard


def _lines(trial: Touched, differences: list[str], resized: list[ResizedApp]) -> list[str]:
    lines = [f"refused: {trial.refused}"] if trial.refused else ["accepted; nothing has been changed"]
    lines += [f"  {line}" for line in differences]
    lines.append("constraints:")
    lines += [f"  {'holds ' if rule.holds else 'BROKEN'}  {rule.text}" for rule in trial.rules]
    lines.append("whom it touches:")
    touches = []
    if trial.leases:
        touches.append(f"  {_named(trial.leases, 'node')}: another lease from the next heartbeat on")
    if trial.lost:
        verb = "has" if len(trial.lost) == 1 else "have"
        touches.append(f"  {_named(trial.lost, 'node')}: {verb} been silent for longer than the new node_grace")
    if trial.unmounted:
        touches.append(f"  {_named(trial.unmounted, 'node')}: another folder of checkpoints, so no containers any more")
    if trial.ended:
        touches.append(f"  {_named(trial.ended, 'ended app')}: dropped at once, with logs and checkpoints")
    touches += [
        f"  {app.name}: {app.then} containers after the next decision, instead of {app.otherwise} (now {app.now})"
        for app in resized
    ]
    return [*lines, *(touches or ["  nobody right now"])]


def _named(names: Sequence[str], what: str) -> str:
    """Return `2 nodes (a, b)`."""
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{counted(len(names), what)} ({', '.join(names[:_NAMED])}{more})"


# --- show, get, set, list ---------------------------------------------------------------------------------------------

app = typer.Typer(
    help="Show and change the settings of decisions: the policy, its parameters, and the master's times.",
    no_args_is_help=True,
)


def _complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    from dorm.core.query.in_force import words

    return complete(ctx, incomplete, lambda state: words(state.settings, state.policy_plugins))


def _complete_pair(ctx: typer.Context, incomplete: str) -> list[str]:
    from dorm.core.query.in_force import words
    from dorm.policies.registry import names

    def pairs(state: State) -> list[str]:
        plugins = state.policy_plugins
        return [f"{word}=" for word in words(state.settings, plugins)] + [
            f"policy={name}" for name in (*names(), *plugins)
        ]

    return complete(ctx, incomplete, pairs)


@app.command("show")
@command()
async def show_policy(cx: Cluster, output: Output = Format.table) -> None:
    """Show the current policy with every parameter, and the master's times: value, default, meaning.

    [bold]Examples[/]

      dorm policy show

      dorm policy show -o json

    If the policy fails, nothing changes, and the output names the failure until
    the policy answers again.

    JSON: `policy`, `version`, `plugin` (the distribution that it comes from),
    `fails` (null, or `code`, `reason` and `since`, in UTC nanoseconds), and
    `parameters` and `times`, lists of `name` (as in the log), `word` (as in `dorm
    policy set`), `value` and `default` (in the units of the log: `_ms`, `_s`),
    `meaning`; `checkpoints`, the id of the cluster's folder; `refused`, the last
    changes that the cluster did not accept, with `reason`, `by` and `seq`.
    """
    from dorm.core.query.in_force import gist_of, in_force
    from replay.words import moment

    async with cx.client() as connected:
        state = await connected.state()
    settings = state.settings
    parameters, times = in_force(settings, state.policy_plugins)
    plugin, failure = state.policy_plugins.get(settings.policy), _failure(state)
    if output in (Format.json, Format.yaml):
        document: dict[str, Any] = {
            "policy": settings.policy,
            "version": _version(settings.policy, plugin),
            "plugin": plugin.plugin if plugin is not None else "",
            "fails": failure,
            "parameters": parameters,
            "times": times,
        }
        document |= {"checkpoints": state.checkpoints, "refused": state.refused_changes}
        show_document(document, output)
        return
    gist = gist_of(settings.policy) or (f"of the plug-in {plugin.plugin}" if plugin is not None else "not installed")
    console.print(Text(f"policy {settings.policy}: {gist}"))
    console.print()
    if failure is not None:
        text = f"it fails since {moment(failure['since'])}, so every app keeps what it has: {failure['reason']}"
        console.print(Text(f"{text} [{failure['code']}]", style="yellow"))
        console.print()
    _print_settings([*parameters, *times], output)
    if state.checkpoints:
        console.print(Text(f"\ncheckpoints are in the folder {state.checkpoints}"))
    for refused in state.refused_changes:
        what = "a change" if refused.whole else "a part of a change"
        console.print(Text(f"refused: {what} by {refused.by} (record {refused.seq}): {refused.reason}"))


def _version(name: str, plugin: PolicyPlugin | None) -> int | None:
    from dorm.policies.registry import built_in, version_of

    if built_in(name):
        return version_of(name)
    return plugin.version if plugin is not None else None


def _failure(state: State) -> dict[str, Any] | None:
    failed = state.policy_failure
    if isinstance(failed, msgspec.UnsetType):
        return None
    return {"code": failed.code, "reason": failed.reason, "since": failed.since}


def _print_settings(settings: list[Setting], output: Format) -> None:
    from dorm.core.query.in_force import shown

    rows = [
        {
            "word": setting.word,
            "value": shown(setting, setting.value),
            "default": shown(setting, setting.default),
            "meaning": setting.meaning,
        }
        for setting in settings
    ]
    columns = [("SETTING", "word"), ("VALUE", "value"), ("DEFAULT", "default")]
    show(rows, columns, output, note=("MEANING", "meaning"))


@app.command("get")
@command()
async def get(
    cx: Cluster,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Name of a parameter or a time.", autocompletion=_complete_key)
    ],
    output: Output = Format.table,
) -> None:
    """Print one value, for scripts.

    [bold]Examples[/]

      dorm policy get theta2

      dorm policy get quiet

      dorm policy get policy
    """
    from dorm.core.query.in_force import POLICY, in_force, shown, words

    async with cx.client() as connected:
        state = await connected.state()
    settings, plugins = state.settings, state.policy_plugins
    value: Any = {"name": POLICY, "value": settings.policy} if key == POLICY else None
    text = settings.policy
    parameters, times = in_force(settings, plugins)
    for entry in (*parameters, *times):
        if key in (entry.name, entry.word):
            value, text = entry, shown(entry, entry.value)
    if value is None:
        raise Fail(
            f"unknown setting {key!r}; there are {', '.join(words(settings, plugins))}",
            USAGE,
            code="settings.unknown",
        )
    if output in (Format.json, Format.yaml):
        show_document(value, output)
    else:
        console.print(Text(text))


@app.command("set")
@command(user=True)
async def set_policy(
    cx: Cluster,
    pairs: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE", help="Settings to change; the rest stays.", autocompletion=_complete_pair),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change and what it would affect; change nothing.")
    ] = False,
    output: Output = Format.table,
) -> None:
    """Change parameters, times or the policy, from the next round on.

    Only the named settings change; KEY=default resets one. Another policy starts
    with its own defaults. The change is an event on the log, so replays include
    it.

    Harmful combinations of times are always refused: node_grace must be longer
    than two heartbeats, node_lease at least node_grace plus one heartbeat (and
    3s), quiet_limit at least quiet, idle at least quiet_limit. --dry-run says
    which of these hold, and which nodes and apps the change would affect; exit
    code 1 if it would be refused.

    checkpoints=ID selects the cluster's checkpoint folder if nodes have mounted
    different ones.

    retention sets how long ended apps are kept, with their logs, checkpoints and
    outputs; retention.TENANT sets it for one tenant (on an open cluster, for one
    user).

    weights=tenants gives all tenants the same share, which the weights of a
    tenant's apps divide; with weights=apps, the default, an app's weight counts
    relative to all other apps.

    tenant_apps=N limits how many apps of one tenant may be there at once that have
    not ended (10,000 by default); further submissions are refused.

    suspect_after=N (3 by default) makes a node suspect, so that it takes nothing
    new, when N different apps failed there within suspect_within (1h) while apps
    run on other nodes; 0 turns that off.

    [bold]Examples[/]

      dorm policy set theta2=0.2 quiet=500ms

      dorm policy set theta1=default

      dorm policy set policy=static count=3

      dorm policy set weights=tenants

      dorm policy set retention=3d retention.alice=30d

      dorm policy set suspect_after=3 suspect_within=1h

      dorm policy set heartbeat=1s node_grace=5s node_lease=30s --dry-run
    """
    from dorm.cli.changes import change_of
    from dorm.core.query.trying import differences
    from dorm.core.settings import all_after, asked_of

    async with cx.client() as connected:
        state = await connected.state()
        before = msgspec.structs.replace(state.settings)
        plugins = state.policy_plugins
        change = change_of(pairs, before, plugins)
        if dry_run:
            if not await show_dry_run(
                connected, state, change, output, differences(before, asked_of(before, change, plugins), plugins)
            ):
                raise typer.Exit(FAILED)
            return
        if _settings_after(before, change, plugins) == before:
            console.print(Text("nothing to change: the settings already have these values"))
            return
        after = await connected.change_policy(change)
    for line in (*differences(before, after, plugins), *_from_when(before, after)):
        console.print(Text(line))
    if all_after(after, change, plugins) != after:
        raise Fail(
            "someone else changed the same setting at the same time; check `dorm policy show`",
            code="settings.changed_meanwhile",
        )


def _settings_after(before: Settings, change: PolicyChanged, plugins: Plugins) -> Settings:
    from dorm.core.settings import all_after

    try:
        return all_after(before, change, plugins)
    except ValueError as error:
        raise Fail.of(error, USAGE) from None


def _from_when(before: Settings, after: Settings) -> list[str]:
    """Describe changes that do not hold everywhere at once: no node may be given up before it has surely stopped its
    containers."""
    if after.node_lease_s >= before.node_lease_s:
        return []
    return [
        "the shorter lease applies on a node as soon as its agent has read it, and for the master as soon as the node has "
        "reported that; for a silent node, the longer one counts"
    ]


@app.command("list")
def list_policies(output: Output = Format.table) -> None:
    """List the policies that are installed here: Dorm's own, and plug-ins with their distributions.

    A cluster can use a plug-in that is installed where its masters run. An
    unusable plug-in is listed with the reason, and the exit code is then 1.

    [bold]Example[/]

      dorm policy list
    """
    from dorm.core.query.in_force import gist_of
    from dorm.policies.registry import DEFAULT, names, policy

    plugins = _plugins()
    rows: list[dict[str, Any]] = [
        {
            "policy": name,
            "version": policy(name).version,
            "default": name == DEFAULT,
            "parameters": sorted(policy(name).check_params({})),
            "meaning": gist_of(name),
            "plugin": "",
            "problem": "",
        }
        for name in names()
    ]
    rows += plugins
    if output in (Format.json, Format.yaml):
        show_document(rows, output)
    else:
        shown = [{**row, "parameters": ", ".join(row["parameters"])} for row in rows if not row["problem"]]
        columns = [("POLICY", "policy"), ("PARAMETERS", "parameters")]
        if plugins:
            columns.insert(1, ("PLUG-IN", "plugin"))
        show(shown, columns, output, note=("MEANING", "meaning"))
    for row in plugins:
        if row["problem"]:
            report_error(row["problem"], "policy.plugin.broken")


def _plugins() -> list[dict[str, Any]]:
    from dorm import plugins

    rows = []
    for name, plugin in plugins.discover().items():
        row: dict[str, Any] = {"policy": name, "version": None, "default": False, "parameters": [], "meaning": ""}
        row |= {"plugin": plugin.plugin, "problem": ""}
        try:
            loaded = plugins.policy(name)
        except plugins.PluginError as error:
            row["problem"] = str(error)
        else:
            row |= {"version": loaded.version, "parameters": sorted(loaded.defaults), "meaning": loaded.meaning}
        rows.append(row)
    plugins.close()
    return rows
