"""`dorm logs`: the output of an app's containers, of this generation or of an earlier one."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.output import progress_console
from dorm.cli.source import clock_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from dorm.client.output import Line, Output, Ran


class _Wanted(msgspec.Struct, frozen=True):
    """The part of each container's output that is printed."""

    follow: bool
    tail: int | None
    since: int | None
    times: bool
    grep: str

    def chunks(self, output: Output, ran: Ran, slot: int) -> AsyncIterator[bytes]:
        from dorm.cli.apps.lines import report_missed

        missed = partial(report_missed, ran.named(slot))
        return output.read_slot(ran, slot, follow=self.follow, tail=self.tail, since=self.since, missed=missed)

    def lines(self, output: Output, ran: Ran, slot: int) -> AsyncIterator[Line]:
        from dorm.cli.apps.lines import report_missed
        from dorm.client.output import lines, timed_lines

        if not self.times:
            return lines(self.chunks(output, ran, slot), bars=self.follow)
        missed = partial(report_missed, ran.named(slot))
        pieces = output.read_timed(ran, slot, follow=self.follow, tail=self.tail, since=self.since, missed=missed)
        return timed_lines(pieces, bars=self.follow)


@command()
async def logs(
    cx: Cluster,
    app: AppName,
    slot: Annotated[int | None, typer.Option(min=0, help="The container in this slot; default: the first slot.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="The container of this rank.")] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="All ranks; each line is prefixed with its rank.")] = False,
    generation: Annotated[
        int | None, typer.Option(min=1, help="The generation with this number; default: the latest that started.")
    ] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="The generation before the latest.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME|-10m|SEQ", help="Only lines since this time: 14:05 or 2026-11-21T09:00 (UTC), a duration ago (-10m), or " "the sequence of a record."),
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="Prefix each line with the time at which it was written (UTC).")] = False,
    grep: Annotated[str | None, typer.Option(metavar="TEXT", help="Only the lines that contain this text.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the container ends.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines of each container, before --grep applies.")] = None,
) -> None:  # fmt: skip
    """Print the output of an app's containers, also after the app has ended.

    A slot names a container for its whole life. Its rank (DORM_RANK) is the
    position of its slot among the app's slots. Both are the same number, unless a
    live-resized app loses a member: the ranks after it then move up. For an
    earlier generation, ranks count all slots that it had.

    Each resize, restart or failure begins a new generation. The output of earlier
    generations stays on the nodes as long as the cluster keeps ended apps.

    Times are those of the nodes' clocks: exact to the nanosecond in Docker, to
    about a second for plain processes, and less exact for old lines of plain
    processes. `-` stands for an unknown time; such lines pass --since. With
    --all, lines with times are sorted, unless you follow them.

    [bold]Examples[/]

      dorm logs digits-mlp

      dorm logs -f digits-mlp --slot 2 --tail 20

      dorm logs digits-mlp --all --grep loss

      dorm logs digits-mlp --all --timestamps --since -10m

      dorm logs digits-mlp --previous --rank 0
    """
    if sum((slot is not None, rank is not None, every)) > 1:
        raise WrongUsage("--slot, --rank and --all each say which containers; give one of them", code="usage.conflict")
    if generation is not None and previous:
        raise WrongUsage("--generation and --previous both name a generation; give one", code="usage.conflict")
    begin = clock_time(since)

    from dorm.cli.project.shipping import missing_in

    async with cx.client() as connected:
        output = connected.output
        ran = await output.generation(await connected.app(app), generation, previous=previous)
        wanted = _Wanted(follow, tail, await begin(connected.log), timestamps, grep or "")
        await _print(output, ran, None if every else ran.slot(slot=slot, rank=rank), wanted)
        if missing := await missing_in((found := await connected.app(ran.app.id)), None):
            progress_console.print(Text(f"{found.name} {found.ended}: {missing}"), soft_wrap=True)


async def _print(output: Output, ran: Ran, slot: int | None, wanted: _Wanted) -> None:
    """Print the output of one container, or of all."""
    from dorm.cli.apps.lines import Printer, print_all, print_merged

    if slot is None:
        slots = sorted(ran.nodes)
        _check_count(slots, wanted)
        printer = Printer(len(slots), wanted.grep)
        outputs = [wanted.lines(output, ran, one) for one in slots]
        if wanted.times and not wanted.follow:
            await print_merged(printer, outputs)
        else:
            await print_all(printer, outputs, follow=wanted.follow)
    elif wanted.grep or wanted.times:
        await Printer(0, wanted.grep).print(wanted.lines(output, ran, slot), 0)
    else:
        async for chunk in wanted.chunks(output, ran, slot):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()


def _check_count(slots: Sequence[int], wanted: _Wanted) -> None:
    from dorm.cli.apps.lines import MOST_FOLLOWED

    if not (wanted.follow or wanted.times) or len(slots) <= MOST_FOLLOWED:
        return
    does, option = ("follows", "--follow") if wanted.follow else ("merges", "--timestamps")
    raise Fail(
        f"--all {does} at most {MOST_FOLLOWED} containers, and there are {len(slots)}; name one with --rank, or leave out "
        f"{option}",
        code="logs.too_many",
    )
