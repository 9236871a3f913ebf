"""`dorm shadow`: another policy next to the one that decides."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import IO, TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import USAGE, Fail, WrongUsage, report_error
from dorm.cli.output import Format, Output, SafeConsole, counted, solver_prints_elsewhere
from dorm.cli.settings import complete_policy, parse_params
from dorm.cli.source import File, log_of, parse_moment, progress_of
from dorm.cli.terminal import clean, one_line

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.policies.problem import Policy
    from events.log.interface import ReadableLog
    from events.nats.stores import Comparisons
    from replay.shadow import AppDifference, Comparison

_SHOWN = 4
"""Apps that a line names."""
_WHAT_IF_LIMIT_S = 300.0
_HOUR_S = 3600.0
SHORT_WINDOW_S = 600.0
"""Figures per hour of a shorter window say little: one app that ends in its only minute makes sixty an hour."""
_WINDOW = "-1h"
_COMMAND = [sys.executable, "-c", "from dorm.cli.main import main; main()"]


@command()
async def shadow(
    cx: Cluster,
    policy: Annotated[
        str, typer.Option(metavar="POLICY", autocompletion=complete_policy, help="The policy to try.")
    ],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Parameter of the policy, such as theta2=0.3."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="SEQ|TIME|-10m", help="Start with the allocation at this moment; default: now."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Compare once, with the current allocation, and exit.")] = False,
    what_if: Annotated[
        str,
        typer.Option("--what-if", metavar="DURATION", help="How often to simulate the last hour under both policies; 0s: never."),
    ] = "10m",
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Publish the comparisons on the cluster's NATS server.")
    ] = True,
    file: File = None,
    output: Output = Format.table,
) -> None:  # fmt: skip
    """Follow the log, decide under another policy whenever the leading master has decided, and show the differences.

    The shadow maintains its own allocation: at each decision of the master, it
    asks the policy about the same apps, bounds and nodes, but with the containers
    of the policy's own last answer. It lists the apps whose number of containers
    on the log differs from that allocation, each with the reason. In the shadow,
    adjustments take no time, and apps work and end as on the log.

    To estimate the effect per hour, it regularly simulates the last hour under
    both policies, as `dorm whatif --from -1h` does, with its backtest, in a
    process that may take 5 minutes.

    It writes to no stream that the cluster reads, takes no lease, and changes
    nothing. Comparisons go to the stream DORM_shadow-CLUSTER, on the subject
    dorm.CLUSTER.shadow.POLICY.USER, kept for a week at most. With --file, they
    are only printed.

    JSON, one line each: kind "comparison" has seq (the master's decision), at,
    policy, apps (app, name, has, would_have, nodes, nodes_then, why, code),
    differing, moved, live, now and then (utilization, fairness_loss, containers,
    running, waiting), changes and changes_really, took_s, failed; kind "what_if"
    has window_s, really, unchanged and changed (per hour: completed, adjustments;
    mean_completion_s, mean_wait_s, utilization), completion_difference_s,
    within_error, backtest, failed. Times are UTC nanoseconds, lengths seconds.

    [bold]Examples[/]

      dorm shadow --policy tiresias

      dorm shadow --policy dorm --set theta2=0.3 --since -1h -o json

      dorm shadow --policy dorm-speed --once

      dorm shadow --policy static --set count=2 --file incident.dorm
    """
    if once and since is not None:
        raise WrongUsage(
            "--once compares with the allocation as it is, so it can't go with --since", code="usage.conflict"
        )
    every_s = _duration(what_if)
    chosen, params = _chosen(policy, change)
    moment = parse_moment(since)

    async def work() -> None:
        from replay.shadow import Shadow
        from replay.travel.travel import state_at

        name = "*" if file is not None else cx.target().cluster
        arguments = _whatif_arguments(policy, change, file, cx)
        async with contextlib.AsyncExitStack() as stack:
            log, comparisons = await _opened(stack, file, cx, policy, publish=publish)
            out = _Out(output, printed, comparisons, cx.target().cluster)
            shadowing = Shadow(log, name, chosen, params)
            end = await log.end()
            if comparisons is not None:
                await comparisons.prepare()
            if once:
                await out.comparison(await shadowing.now())
                await _what_if(out, arguments) if every_s else None
                return
            begin = (await state_at(log, moment)).seq if moment else (await log.start() if file is not None else end)
            async with asyncio.TaskGroup() as tasks:
                asking = (
                    tasks.create_task(_what_if_regularly(out, arguments, every_s)) if every_s and file is None else None
                )
                with progress_of("comparing") as progress:
                    report = progress if file is not None else None
                    lines = shadowing.run(since=begin, end=end, follow=file is None, progress=report)
                    async with contextlib.aclosing(lines):
                        async for line in lines:
                            await out.comparison(line)
                if asking is not None:
                    asking.cancel()
            if every_s and file is not None:
                await _what_if(out, arguments)

    with os.fdopen(os.dup(1), "w") as printed, solver_prints_elsewhere():
        await work()


def _duration(text: str) -> float:
    from events.quantities import QuantityError, duration

    try:
        return duration(text)
    except QuantityError as error:
        raise WrongUsage(f"--what-if: {error}", code="usage.what_if.malformed") from None


def _chosen(name: str, change: list[str] | None) -> tuple[Policy, dict[str, Any]]:
    """Return the policy and all its parameters.  Raises Fail."""
    from dorm.policies.registry import UnknownPolicy
    from dorm.policies.registry import policy as known
    from events.errors import code_of

    try:
        policy = known(name)
        return policy, policy.check_params(parse_params(change))
    except UnknownPolicy as error:
        raise Fail.of(error, USAGE) from None
    except ValueError as error:
        raise Fail(str(error), USAGE, code=code_of(error)) from None


async def _opened(
    stack: contextlib.AsyncExitStack,
    file: Path | None,
    cx: Cluster,
    policy: str,
    *,
    publish: bool,
) -> tuple[ReadableLog, Comparisons | None]:
    if file is not None:
        return await stack.enter_async_context(log_of(file, cx)), None
    connected = await stack.enter_async_context(cx.client())
    comparisons = connected.comparisons(policy) if publish else None
    return connected.log, comparisons


class _Out:
    """Prints lines, and publishes them."""

    def __init__(self, output: Format, printed: IO[str], comparisons: Comparisons | None, cluster: str) -> None:
        """`printed` is standard output by a number of its own: the usual one takes what solvers print."""
        self._json = output in (Format.json, Format.yaml)
        self._printed = printed
        self._console = SafeConsole(file=printed)
        self._comparisons = comparisons
        self._cluster = cluster
        self._failing = False

    async def comparison(self, compared: Comparison) -> None:
        from replay.shadow import smaller

        await self._publish(msgspec.json.encode(compared), lambda most: msgspec.json.encode(smaller(compared, most)))
        if self._json:
            self._line(msgspec.json.encode(compared).decode())
        else:
            self._console.print(Text(one_line(_in_words(compared))))
        self._printed.flush()

    async def what_if(self, figures: dict[str, Any]) -> None:
        body = msgspec.json.encode({"kind": "what_if", "cluster": self._cluster, **figures})
        await self._publish(body, lambda _most: body)
        if self._json:
            self._line(body.decode())
        else:
            self._console.print(Text(one_line(_hour_in_words(figures)), style="dim"))
        self._printed.flush()

    def _line(self, text: str) -> None:
        self._printed.write(clean(text) + "\n")

    async def _publish(self, body: bytes, shorter: Any) -> None:
        """Publish; a stream that does not answer keeps no comparison from being printed, and is reported once."""
        if self._comparisons is None:
            return
        from events.limits import LARGEST_FACTS
        from events.log.records import LogError

        for most in (100, 10, 0):
            if len(body) <= LARGEST_FACTS:
                break
            body = shorter(most)
        try:
            await self._comparisons.publish(body)
            self._failing = False
        except LogError as error:
            if not self._failing:
                report_error(f"comparisons are not published: {error}", error.code)
            self._failing = True


# --- the last hour ------------------------------------------------------------------------------------------------------


def _whatif_arguments(policy: str, change: list[str] | None, file: Path | None, cx: Cluster) -> list[str]:
    pairs = [part for pair in change or [] for part in ("--set", pair)]
    target = cx.target()
    source = ["--file", str(file)] if file is not None else ["--url", target.url, "--cluster", target.cluster]
    source += ["--credentials", target.credentials] if file is None and target.credentials else []
    return ["whatif", "--from", _WINDOW, "--policy", policy, *pairs, *source, "-o", "json"]


async def _what_if_regularly(out: _Out, arguments: list[str], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await _what_if(out, arguments)


async def _what_if(out: _Out, arguments: list[str]) -> None:
    """Simulate the last hour in a process of its own, which is killed when it takes too long or this command ends."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        process_group=0,
    )
    try:
        async with asyncio.timeout(_WHAT_IF_LIMIT_S):
            text, trouble = await process.communicate()
    except TimeoutError:
        await out.what_if({"failed": f"it took longer than {_WHAT_IF_LIMIT_S:g} s"})
        return
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
    await out.what_if(_result_of(process.returncode, text, trouble))


def _result_of(code: int | None, text: bytes, trouble: bytes) -> dict[str, Any]:
    try:
        printed = json.loads(text)
    except ValueError:
        printed = None
    if code != 0 or not isinstance(printed, dict):
        lines = trouble.decode(errors="replace").strip().splitlines()
        return {"failed": _reason(lines[-1]) if lines else f"it ended with code {code}"}
    hours = max(printed["window_s"], 1.0) / _HOUR_S
    courses = {name: _per_hour(printed[name], hours) for name in ("really", "unchanged", "changed")}
    kept = ("seq", "at", "end", "window_s", "completion_difference_s", "within_error", "backtest")
    return {**{name: printed[name] for name in kept}, **courses, "failed": ""}


def _reason(line: str) -> str:
    try:
        return str(json.loads(line)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return line


def _per_hour(figures: dict[str, Any] | None, hours: float) -> dict[str, Any] | None:
    if figures is None:
        return None
    return figures | {name: round(figures[name] / hours, 3) for name in ("completed", "adjustments")}


# --- for people ---------------------------------------------------------------------------------------------------------


def _in_words(comparison: Comparison) -> str:
    from replay.words import moment

    head = f"{moment(comparison.at)}  record {comparison.seq}: "
    if comparison.failed:
        return f"{head}{comparison.policy} failed, so its allocation stays: {comparison.failed}"
    named = "; ".join(_app_in_words(app) for app in comparison.apps[:_SHOWN])
    more = f"; and {comparison.differing - _SHOWN} more" if comparison.differing > _SHOWN else ""
    moved = f", {comparison.moved} on other nodes" if comparison.moved else ""
    singular = comparison.differing == 1 or comparison.live == 1
    what = f"{comparison.differing} of {counted(comparison.live, 'app')} differ{'s' if singular else ''}{moved}"
    then, now = comparison.then, comparison.now
    figures = (
        f"utilization {now.utilization:.3f} -> {then.utilization:.3f}, fairness loss {now.fairness_loss:.3f} -> "
        f"{then.fairness_loss:.3f}, waiting {now.waiting} -> {then.waiting}, changes {comparison.changes_really} -> {comparison.changes}"
    )
    return f"{head}{what}{': ' if named else ''}{named}{more}  [{figures}]"


def _app_in_words(app: AppDifference) -> str:
    why = f" ({app.code}: {app.why})" if app.code else ""
    return f"{app.name} has {app.has}, would have {app.would_have}{why}"


def _hour_in_words(hour: dict[str, Any]) -> str:
    if hour["failed"]:
        return f"the last hour could not be simulated: {hour['failed']}"
    changed, base = hour["changed"] or hour["unchanged"], hour["unchanged"]
    parts = [f"completed {base['completed']:g} -> {changed['completed']:g} an hour"]
    if hour["completion_difference_s"] is not None:
        within = {True: "within the backtest's error", False: "more than the backtest's error", None: "error unknown"}
        parts.append(f"mean completion {hour['completion_difference_s']:+.1f} s ({within[hour['within_error']]})")
    parts.append(f"adjustments {base['adjustments']:g} -> {changed['adjustments']:g} an hour")
    short = " (too short for reliable figures per hour)" if hour["window_s"] < SHORT_WINDOW_S else ""
    return f"the last {hour['window_s'] / 60:.0f} min under it{short}: {', '.join(parts)}"
