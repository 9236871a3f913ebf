"""`dorm replay bisect`: the record that made an outcome inevitable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.connect import ClusterName, Url
from dorm.cli.errors import run
from dorm.cli.output import Format, Output, console, counted, show, show_document, solver_prints_elsewhere
from dorm.cli.source import File, log_of, progress_of

if TYPE_CHECKING:
    from events.log.interface import ReadableLog
    from events.positions import Logged
    from replay.bisect import Bisected
    from replay.story.chapters import Chapter

_CHAPTERS = 4
"""Chapters of an app's story that are shown, up to the record."""


def register(app: typer.Typer) -> None:
    """Register the command of `dorm replay`."""
    app.command("bisect")(bisect)


def bisect(
    outcome: Annotated[
        str, typer.Argument(metavar="OUTCOME", help="The outcome, such as 'digits completed before 10:00'.")
    ],
    policies: Annotated[
        list[str],
        typer.Option(
            "--policies", metavar="POLICY,…",
            help="Policies under which the outcome has to hold, with optional parameters: " "dorm,theta2=0.3,static.",
        ),
    ],
    tries: Annotated[
        int, typer.Option(min=1, max=100_000, metavar="N", help="Simulate at most this many continuations of the log.")
    ] = 60,
    file: File = None,
    output: Output = Format.table,
    url: Url = None,
    cluster: ClusterName = None,
) -> None:  # fmt: skip
    """Find the first record after which an outcome held under every policy: when did it become inevitable?

    At each tried moment, the log is continued in the simulator once for each
    policy, as by `dorm whatif`: later events that are not decisions are repeated,
    apps have the work that they turned out to have, and the policy makes every
    decision. The outcome holds at a moment if it holds in all continuations.

    OUTCOME is one of these, or several with and, or, not and parentheses:

      APP completed|failed|cancelled|ended|started before|after TIME

      APP waiting|running at TIME

      APP has (at least|at most|exactly) N containers at TIME

      utilization|fairness loss|running apps|waiting apps
      above|below|at least|at most NUMBER at TIME

    TIME is 10:00 or 10:00:30 (UTC, on the day on which the log ends),
    2026-11-21T10:00, -10m (before the log's end) or +2h (after it).

    The command first scans the log coarsely, then uses a binary search, which is
    correct only if an inevitable outcome stays inevitable. If the outcome did not
    hold at a later moment, the output says so, and the record found is the last
    one that made it inevitable. A short lapse between two tried moments goes
    unnoticed; --tries makes the scan finer.

    JSON: inevitable (the record's sequence; null: never; 0: from the start),
    after (the last moment that did not hold), exact, monotone, really (what the
    log itself says), moments (seq, at, verdicts by policy), tries, guesses (apps
    whose work or speed is one), record (events of that record) and story
    (chapters of the apps up to it). Times are UTC nanoseconds.

    [bold]Examples[/]

      dorm replay bisect 'digits completed before 10:00' --policies dorm,static

      dorm replay bisect 'not (digits completed before -1h)' --policies dorm --file incident.dorm

      dorm replay bisect 'utilization above 80% at -10m and waiting apps at most 2 at -10m' --policies dorm,tiresias -o json
    """

    async def work() -> None:
        from replay.bisect import bisect as bisected
        from replay.simulator.compare.contenders import split_all

        chosen = split_all(policies)
        async with log_of(file, url, cluster) as log:
            with progress_of("reading") as reading, progress_of("simulating") as trying, solver_prints_elsewhere():
                found = await bisected(log, outcome, chosen, tries=tries, reading=reading, trying=trying)
            record = await _record(log, found)
            story = await _story(log, found)
        if output in (Format.json, Format.yaml):
            show_document(_document(found, record, story), output)
        else:
            _show(found, record, story)

    run(work())


async def _record(log: ReadableLog, found: Bisected) -> list[Logged]:
    from events.positions import logged

    record = await log.record_at(found.inevitable) if found.inevitable else None
    return list(logged(record)) if record is not None else []


async def _story(log: ReadableLog, found: Bisected) -> dict[str, list[Chapter]]:
    """Return the last chapters of each app that the outcome names, up to the record."""
    from replay.moments import AtSequence
    from replay.story.story import StoryError, tell

    told = {}
    for name in found.apps if found.inevitable else ():
        try:
            story = await tell(log, name, AtSequence(found.inevitable or 0))
        except StoryError:
            continue  # It was submitted later.
        told[name] = list(story.chapters)[-_CHAPTERS:]
    return told


def _document(found: Bisected, record: list[Logged], story: dict[str, list[Chapter]]) -> dict[str, Any]:
    from dorm.cli.log.events import in_words

    lines = [
        {"position": str(one.position), "kind": type(one.event).__name__, "text": in_words(one.event)} for one in record
    ]
    return {**msgspec.structs.asdict(found), "record": lines, "story": story}


def _show(found: Bisected, record: list[Logged], story: dict[str, list[Chapter]]) -> None:
    from dorm.cli.apps.story import show_chapters
    from dorm.cli.log.events import in_words
    from replay.words import moment

    rows = [
        {
            "seq": one.seq,
            "at": moment(one.at) if one.at else "-",
            **{policy: _word(held) for policy, held in one.verdicts.items()},
            "by": "the log" if one.recorded else "simulation",
        }
        for one in found.moments
    ]
    columns = [("RECORD", "seq"), ("TIME", "at"), *((policy.upper(), policy) for policy in found.policies)]
    show(rows, [*columns, ("DECIDED BY", "by")], Format.table)
    console.print()
    for line in _verdict(found):
        console.print(Text(line))
    if record:
        console.print()
    for one in record:
        console.print(Text(f"{one.position!s:>8}  {type(one.event).__name__:<21}{in_words(one.event)}"))
    for name, chapters in story.items():
        console.print(Text(f"\n{name}", style="bold"))
        show_chapters(chapters)


def _verdict(found: Bisected) -> list[str]:
    from replay.words import moment

    really = {True: "it did", False: "it did not", None: "the log ends before that is decided"}[found.really]
    lines = [f"{found.outcome}: {really}"]
    if found.inevitable is None:
        broken = [policy for policy, held in found.moments[-1].verdicts.items() if not held]
        lines.append(f"it was never inevitable: at the log's end it does not hold under {', '.join(broken)}")
    elif found.after is None:
        lines.append("it was inevitable from the start of the log")
    elif found.exact:
        lines.append(f"record {found.inevitable} of {moment(found.inevitable_at or 0)} made it inevitable")
    else:
        lines.append(
            f"it became inevitable after record {found.after}, and by record {found.inevitable}; more --tries say when"
        )
    if not found.monotone:
        lines.append("it is not monotone: an earlier moment held, and a later one did not")
    if found.guesses:
        lines.append(f"the work or the speed of {', '.join(found.guesses[:5])} is a guess, so this may be off")
    lines.append(f"{counted(found.tries, 'continuation')} simulated")
    return lines


def _word(held: bool) -> str:
    return "holds" if held else "does not"
