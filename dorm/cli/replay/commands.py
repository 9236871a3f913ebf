"""`dorm replay`: the log's past, of a live cluster or of an exported file."""

from __future__ import annotations

import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.log.verdicts import Expect, Jobs, Keys, check_expected, check_keys, jobs_of, show_audit
from dorm.cli.output import Format, Output, solver_prints_elsewhere
from dorm.cli.replay import archive, bisect, opened, page, step, timeline
from dorm.cli.replay.state import state
from dorm.cli.source import File, log_of, progress_of

app = typer.Typer(
    help="Inspect the log's past: the state at any moment, an audit of every decision, a copy in a file.",
    no_args_is_help=True,
)
app.command(help="The same as `dorm state`.")(state)


@app.command()
@command()
async def verify(
    cx: Cluster,
    file: File = None,
    jobs: Jobs = None,
    key: Keys = None,
    expect: Expect = None,
    output: Output = Format.table,
) -> None:
    """Fold the log and repeat every decision; exit with 1 at the first divergence.

    The command also checks the log's seals (`dorm log verify`), its snapshots,
    and the state's invariants after every event. Decisions by a policy, solver or
    build that is not installed count as not checked.

    [bold]Examples[/]

      dorm replay verify

      dorm replay verify --file incident.dorm --jobs 1 -o json
    """
    keys, expected = check_keys(key), check_expected(expect)

    from replay.audit.audit import verify as audit

    async with log_of(file, cx, tells_damage=True) as log:
        with progress_of("auditing") as report, solver_prints_elsewhere():
            found = await audit(log, jobs=jobs_of(jobs), keys=keys, expected=expected, progress=report)
    show_audit(found, output)


for module in (archive, opened, page, timeline, step, bisect):
    module.register(app)
