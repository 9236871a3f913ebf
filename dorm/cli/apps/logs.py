"""`dorm logs`: what an app's containers wrote, of this generation or of an earlier one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dorm.cli.apps.commands import PANEL
from dorm.cli.connect import AppName, ClusterName, Url, client
from dorm.cli.errors import Fail, WrongUsage, run


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(logs)


def logs(
    app: AppName,
    slot: Annotated[int | None, typer.Option(min=0, help="The container in this slot; default: the first.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="The container of this rank.")] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="All ranks, each line with its rank before it.")] = False,
    generation: Annotated[
        int | None, typer.Option(min=1, help="Of the generation with this number; default: the latest that started.")
    ] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of the generation before the latest.")] = False,
    grep: Annotated[str | None, typer.Option(metavar="TEXT", help="Only the lines that contain this text.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the container ends.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines of each, before --grep.")] = None,
    url: Url = None,
    cluster: ClusterName = None,
) -> None:
    """Print what an app's containers wrote, also after the app has ended.

    A slot names a container for as long as it lives. Its rank, DORM_RANK, is the
    position of its slot among the app's slots: the same number, unless the app
    resizes live, when a member that leaves moves up the ranks after it. Of an
    earlier generation, ranks count all the slots that it has had.

    Each resize, restart or failure begins a new generation, and the output of
    earlier ones stays on the nodes for as long as the cluster keeps ended apps.

    [bold]Examples[/]

      dorm logs digits-mlp

      dorm logs -f digits-mlp --slot 2 --tail 20

      dorm logs digits-mlp --all --grep loss

      dorm logs digits-mlp --previous --rank 0
    """
    if sum((slot is not None, rank is not None, every)) > 1:
        raise WrongUsage("--slot, --rank and --all each say which containers; give one of them", code="usage.conflict")
    if generation is not None and previous:
        raise WrongUsage("--generation and --previous both name a generation; give one", code="usage.conflict")

    async def work() -> None:
        from dorm.cli.apps.lines import Printer, print_all

        async with client(url, cluster) as connected:
            output = connected.output
            ran = await output.generation(await connected.app(app), generation, previous=previous)
            if every:
                slots = sorted(ran.nodes)
                if follow:
                    _check_followed(len(slots))
                asked = [output.read_slot(ran, one, follow=follow, tail=tail) for one in slots]
                await print_all(Printer(len(slots), grep or ""), asked, follow=follow)
                return
            chunks = output.read_slot(ran, ran.slot(slot=slot, rank=rank), follow=follow, tail=tail)
            if grep:
                await Printer(0, grep).print(chunks, 0)
                return
            async for chunk in chunks:
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()

    run(work())


def _check_followed(count: int) -> None:
    from dorm.cli.apps.lines import MOST_FOLLOWED

    if count > MOST_FOLLOWED:
        raise Fail(
            f"--all follows at most {MOST_FOLLOWED} containers, and there are {count}; name one with --rank, or leave out "
            "--follow",
            code="logs.too_many",
        )
