"""`dorm log`: verify that the log is what its masters wrote, seal it, move its past into archives, limit its size.

Verdicts about seals and repeated decisions read the same here and in `dorm replay verify`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, User
from dorm.cli.errors import FAILED, Fail, WrongUsage
from dorm.cli.options import seconds_of
from dorm.cli.output import Format, Output, console, counted, print_table, show_document
from dorm.cli.source import File, log_of, progress_of
from events.quantities import MEMORY, QuantityError, humanize, resource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from events.kinds import LogRotated
    from events.nats.connection import Connection
    from replay.audit.audit import Report
    from replay.audit.ledgers import LedgerReport
    from replay.audit.seal_checks import Expected, SealReport
    from replay.audit.slices import Divergence


# --- what is checked, and by which keys -------------------------------------------------------------------------------

Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="PUBKEY",
        help="Public key whose seals count, from `dorm log key` where the master runs; may be repeated. Default: any that the log names.",
    ),
]
Expect = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="SEQ:CHAIN",
        help="Last line of an earlier check: the log must have the same records up to that point.",
    ),
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, max=1024, help="Number of processes; default: one for each core.")
]


def jobs_of(given: int | None) -> int:
    """Return the given number of jobs, by default the number of cores that this process may use."""
    return given or len(os.sched_getaffinity(0))


def check_keys(keys: list[str] | None) -> list[str]:
    """Return the checked keys.  Raises WrongUsage."""
    from events.chain import KeyUnusableError, check_public

    try:
        return [check_public(key) for key in keys or []]
    except KeyUnusableError as error:
        raise WrongUsage.of(error) from None


def check_expected(text: str | None) -> Expected | None:
    """Parse the expected seal.  Raises WrongUsage."""
    from replay.audit.seal_checks import Expected, SealError

    try:
        return None if text is None else Expected.parse(text)
    except SealError as error:
        raise WrongUsage.of(error) from None


# --- seals --------------------------------------------------------------------------------------------------------------


def show_seals(report: SealReport, output: Format) -> None:
    """Print the result.  Raises Fail if the log differs from its seals, or has none."""
    if output in (Format.json, Format.yaml):
        show_document(report, output)
        if wrong_with(report):
            raise typer.Exit(FAILED)
        return
    if not report.unknown:
        for line in seal_lines(report):
            _print_note(line)
    if wrong := wrong_with(report):
        raise Fail(wrong, code="seal.differs")
    _print_note(f"the log is as it was sealed up to sequence {max(report.sealed_upto, report.expected_seq)}", "green")


def seal_lines(report: SealReport) -> list[str]:
    """Return all lines but the verdict."""
    lines = []
    for use in report.keys:
        where = f"at sequence {use.first}" if use.first == use.last else f"from sequence {use.first} to {use.last}"
        lines.append(f"{counted(use.seals, 'seal')} by key {use.key}, {where}")
    if report.keys and not report.keys_given:
        lines.append("these keys are named by the log itself; with --key, only seals by a key that you know count")
    if report.renamed:
        lines.append(
            f"{counted(report.renamed, 'seal')} of the cluster that this log was imported from can't be checked"
        )
    if report.passed_over:
        lines.append(f"{counted(report.passed_over, 'seal')} came too late to be checked")
    if report.expected_seq:
        lines.append(f"up to sequence {report.expected_seq} it is the log that was expected")
    if report.seals and report.damage is None:
        lines.append(
            f"{report.unsealed} of {report.end - report.start} records are after the last seal and not verified"
            if report.unsealed
            else "every record is sealed"
        )
    if report.damage is None:
        lines.append(f"keep elsewhere for --expect: {report.end}:{report.chain}")
    return lines


def wrong_with(report: SealReport) -> str:
    """Return in one line why this log does not count as sealed, '' if it does."""
    if report.unknown:
        return f"the seals can't be checked: {report.unknown}"
    if report.damage is not None:
        return str(report.damage)
    if not report.seals and report.renamed and not report.expected_seq:
        return (
            "nothing was sealed under this cluster's name yet; `dorm log verify --file` checks the archive it came from"
        )
    if not report.seals and not report.expected_seq:
        return "the log has no seal, so nothing is known of it; its master seals it when it has a key"
    return ""


# --- audits -------------------------------------------------------------------------------------------------------------


def show_audit(report: Report, output: Format) -> None:
    """Print the result.  Raises Fail if something differs."""
    if output in (Format.json, Format.yaml):
        show_document(report, output)
        if not report.good:
            raise typer.Exit(FAILED)
        return
    for line in _audit_lines(report):
        _print_note(line)
    if report.divergence is not None:
        _print_note(f"everything before sequence {report.divergence.seq} is as it should be, as far as checked")
        show_divergence(report.divergence)
        raise Fail(f"sequence {report.divergence.seq}: {report.divergence.what}", code="replay.differs")
    if report.seals.damage is not None:
        raise Fail(str(report.seals.damage), code="seal.differs")
    if report.parts.wrong:
        worst = report.parts.wrong[0]
        raise Fail(
            f"the part of node {worst.node} is not what the log says: {worst.what}; the leading master writes all parts when "
            "it begins to lead, so restart it, and find out who else writes there",
            code="part.differs",
        )
    same = "the same state and the same decisions"
    if report.not_checked:
        same = f"the same state, and the same decisions where they could be checked ({report.not_checked} could not)"
    _print_note(f"the log was replayed and gave {same}; digest {report.digest}", "green")


def _audit_lines(report: Report) -> list[str]:
    lines = [
        f"{report.events} of {report.end - report.seals.start} records folded, {counted(report.rounds, 'round')} of the master included",
        f"{report.decisions_checked} decided again with the same result, byte for byte",
        f"{counted(report.conclusions_checked, 'conclusion')} checked (elections, silent nodes)",
    ]
    lines += [f"{counted(report.void, 'round')} of earlier masters void"] if report.void else []
    lines += [f"{count} not checked: {why}" for why, count in report.not_checked_because.items()]
    seals = report.seals
    if seals.renamed:
        lines.append(
            f"{counted(seals.renamed, 'seal')} not checked: the log was imported from a cluster of another name"
        )
    if seals.unknown:
        lines.append(f"seals not checked: {seals.unknown}")
    elif not seals.seals and seals.damage is None and not seals.renamed:
        lines.append("no seals: a change that leaves all decisions valid would not be detected")
    elif seals.seals:
        keys = ", ".join(use.key for use in seals.keys)
        lines.append(f"{counted(seals.seals, 'seal')} up to sequence {seals.sealed_upto} match, by {keys}")
    if report.parts.checked:
        lines.append(f"{counted(report.parts.checked, 'part')} of nodes derived from the log again, byte for byte")
    lines += [f"node {node} has no part yet" for node in report.parts.missing]
    lines += [f"the part of node {part.node}, of record {part.seq}: {part.what}" for part in report.parts.wrong]
    return lines + _ledger_lines(report.ledgers)


def _ledger_lines(ledgers: LedgerReport) -> list[str]:
    """Say what live apps reported of the samples that they used, if any did."""
    lines = []
    if ledgers.right:
        lines.append(f"{counted(ledgers.right, 'epoch')} of live apps used each sample exactly once, by their ledgers")
    lines += [
        f"sequence {wrong.seq}: {wrong.app} generation {wrong.generation}, epoch {wrong.epoch}: its ledger is not that of "
        f"{counted(wrong.samples, 'sample')}, each used once"
        for wrong in ledgers.wrong
    ]
    if ledgers.wrong_count > len(ledgers.wrong):
        lines.append(f"{ledgers.wrong_count - len(ledgers.wrong)} more ledgers are wrong")
    if ledgers.not_checked:
        lines.append(f"{counted(ledgers.not_checked, 'ledger')} not checked: too many samples, or left out of the log")
    return lines


def show_divergence(divergence: Divergence) -> None:
    """Print which app would have got what, and the fields that differ."""
    if divergence.apps:
        rows = [
            {
                "app": app.app,
                "before": _places(app.before),
                "recorded": _places(app.recorded),
                "again": _places(app.again),
            }
            for app in divergence.apps
        ]
        print_table(rows, [("APP", "app"), ("HAD", "before"), ("RECORDED", "recorded"), ("AGAIN", "again")])
    # The table above already shows the placements, far more readably.
    fields = [d for d in divergence.differences if not (divergence.apps and ".changes[" in d.path)]
    for difference in fields:
        _print_note(f"  {difference.path}\n    recorded  {difference.recorded}\n    again     {difference.again}")


def _places(nodes: Mapping[str, int]) -> str:
    """Return `3: n1 ×2, n2 ×1`."""
    if not nodes:
        return "nothing"
    each: Sequence[str] = [f"{node} ×{count}" for node, count in nodes.items()]
    return f"{sum(nodes.values())}: {', '.join(each)}"


def _print_note(text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


# --- archives ---------------------------------------------------------------------------------------------------------

KeepRecords = Annotated[
    int | None,
    typer.Option(
        "--keep-records", min=0, metavar="N", help="Keep at least this many records; default: the master's setting."
    ),
]
KeepAge = Annotated[
    str | None,
    typer.Option(
        "--keep", metavar="DURATION", help="Keep records younger than this; default: the master's setting, 1d."
    ),
]


@command()
async def rotate(
    cx: Cluster,
    keep: KeepAge = None,
    keep_records: KeepRecords = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the records that would move.")] = False,
    user: User = None,
    output: Output = Format.table,
) -> None:
    """Move the log's sealed past into archives, and remove it from the stream.

    The leading master writes each archive, reads it back, states it on the log,
    and only then removes its records. Commands read archives and stream as one
    log. With --rotate-size or --rotate-age, a master does this by itself.

    [bold]Examples[/]

      dorm log rotate --dry-run

      dorm log rotate

      dorm log rotate --keep 7d
    """
    keep_s = seconds_of("--keep", keep)

    if dry_run:
        await _show_plan(cx, keep_records, keep_s, output)
        return
    from dorm.client.operating import rotate as asked

    cuts: list[LogRotated] = []
    async with cx.client() as connected:
        async for cut in asked(connected, keep_records=keep_records, keep_s=keep_s):
            cuts.append(cut)
            if output not in (Format.json, Format.yaml):
                _print_cut(cut)
    if output in (Format.json, Format.yaml):
        show_document(cuts, output)


def _print_cut(cut: LogRotated) -> None:
    text = (
        f"records {cut.after + 1:,} to {cut.upto:,} are in {cut.archive} at {cut.place} ({humanize(MEMORY, cut.bytes)})"
    )
    console.print(Text(text), soft_wrap=True)


async def _show_plan(cx: Cluster, keep_records: int | None, keep_s: float | None, output: Format) -> None:
    """Print the records that a rotation would move, by the given or the default values of the part that stays."""
    from dorm.rotation.policy import Policy, span_of

    connection = await cx.target().connection("dorm-client")
    try:
        policy = Policy().asked(keep_records, keep_s)
        after, upto = await span_of(connection.stream, policy)
        end = await connection.stream.end()
    finally:
        await connection.close()
    moves = max(0, upto - after)
    if output in (Format.json, Format.yaml):
        show_document({"after": after, "upto": max(after, upto), "records": moves, "stay": end - after - moves}, output)
    elif moves:
        text = f"up to {moves:,} records would move, {after + 1:,} to {upto:,} or the last seal before; {end - upto:,} stay"
        console.print(Text(text), soft_wrap=True)
    else:
        text = f"nothing would move: the stream keeps {policy.keep_records:,} records, and {policy.keep_s:g} seconds"
        console.print(Text(text), soft_wrap=True)


@command()
async def show(
    cx: Cluster,
    output: Output = Format.table,
) -> None:
    """List the log's archives and its stream: which records are where.

    [bold]Examples[/]

      dorm log show

      dorm log show --archives /mnt/copies/dorm
    """

    target = cx.target()
    connection = await target.connection("dorm-client")
    try:
        parts = await _parts(connection, target.archives)
    finally:
        await connection.log.close()
        await connection.close()
    if output in (Format.json, Format.yaml):
        show_document(parts, output)
        return
    rows = [{"first": f"{part.first:,}", "last": f"{part.last:,}", "where": part.where} for part in parts]
    print_table(rows, [("FIRST", "first"), ("LAST", "last"), ("WHERE", "where")])


class Part(msgspec.Struct, frozen=True):
    """Some records of the log, and where they are."""

    first: int
    last: int
    where: str
    archive: str = ""
    """The archive's name, "" for the stream."""
    bytes: int | None = None
    """Size of the stream."""


async def _parts(connection: Connection, place: str) -> list[Part]:
    """Return the archives, and the stream at the end.  Raises LogError if the archives can't be listed."""
    from events.archive.whole import WholeLog

    parts: list[Part] = []
    log = WholeLog(connection.stream, connection.cluster, place=place)
    try:
        archives = await log.archives()
        if archives is not None and (gap := await archives.missing()) is not None:
            raise gap
        for name in await archives.names() if archives is not None else ():
            assert archives is not None
            parts.append(Part(name.after + 1, name.upto, f"{archives.place}/{connection.cluster}/{name}", str(name)))
    finally:
        await log.close()
    start, end, room = await connection.stream.start(), await connection.stream.end(), await connection.stream.room()
    return [*parts, Part(start + 1, end, f"stream, {humanize(MEMORY, room.taken)}", bytes=room.taken)]


# --- seal, verify, limit, key -----------------------------------------------------------------------------------------

app = typer.Typer(
    help="Seal the log, verify that no record was changed, removed or moved, move its past into "
    "archives, and limit its size.",
    no_args_is_help=True,
)
app.command()(show)
app.command()(rotate)


@app.command()
@command()
async def seal(
    cx: Cluster,
    user: User = None,
    output: Output = Format.table,
) -> None:
    """Make the master seal the log now, and print the seal.

    The master also seals the log every minute or every thousand records, if there
    are new records, and when it stops.

    [bold]Example[/]

      dorm log seal
    """

    async with cx.client() as connected:
        made = await connected.seal()
    if output in (Format.json, Format.yaml):
        show_document(made, output)
        return
    console.print(Text(f"sealed up to sequence {made.upto} with key {made.key}"), soft_wrap=True)
    console.print(Text(f"keep elsewhere for --expect: {made.upto}:{made.chain}"), soft_wrap=True)


@app.command()
@command()
async def verify(
    cx: Cluster,
    file: File = None,
    key: Keys = None,
    expect: Expect = None,
    output: Output = Format.table,
) -> None:
    """Check every seal; exit with 1 if a record differs from what was sealed.

    A seal is a hash of all records up to it, signed with the master's key.
    Records after the last seal are not covered. Keep the last line of the output
    elsewhere: with --expect, it lets you check later whether these records still
    exist.

    This does not repeat decisions: `dorm replay verify` does both.

    [bold]Examples[/]

      dorm log verify

      dorm log verify --file incident.dorm --key "$KEY"

      dorm log verify --expect "$KEPT"
    """
    keys, expected = check_keys(key), check_expected(expect)

    from replay.audit.seal_checks import verify_seals

    async with log_of(file, cx, tells_damage=True) as log:
        with progress_of("verifying") as report:
            seals = await verify_seals(log, keys=keys, expected=expected, progress=report)
    show_seals(seals, output)


@app.command()
@command()
async def limit(
    cx: Cluster,
    size: Annotated[
        str | None,
        typer.Argument(
            metavar="[SIZE]",
            help="Limit, such as 50GiB; `none` removes it. Without an argument, print the current limit.",
        ),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Show how large the log is and may become, or limit it.

    The log grows until rotation moves its past into archives (`dorm log rotate`,
    `dorm log show`), which count towards neither this size nor the limit. With a
    limit, a flood fills the log but not the disks: records are refused, apps keep
    running, and there are no decisions until the limit is raised or the log is
    rotated. Masters and `dorm masters` warn from 80% on. With several servers,
    the limit applies to each of them.

    [bold]Examples[/]

      dorm log limit

      dorm log limit 50GiB

      dorm log limit none
    """
    most = None if size in (None, "none") else _bytes(size or "")

    connection = await cx.target().connection("dorm-client")
    try:
        if size is not None:
            await connection.stream.set_limit(most)
        room = await connection.stream.room()
    finally:
        await connection.close()
    if output in (Format.json, Format.yaml):
        show_document({"bytes": room.taken, "limit": room.limit}, output)
        return
    may = f"of {humanize(MEMORY, room.limit)}" if room.limit else "without a limit of its own"
    console.print(Text(f"the log takes {humanize(MEMORY, room.taken)} {may}"), soft_wrap=True)


def _bytes(size: str) -> int:
    """Raises WrongUsage."""
    try:
        return resource(MEMORY, size)
    except QuantityError as error:
        raise WrongUsage(f"SIZE: {error}", code="log.limit.malformed") from None


@app.command()
@command()
async def key(
    cx: Cluster,
    path: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="The master's key; default: where `dorm up` and `dorm master` keep it."
        ),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Print the master's public key, for `dorm log verify --key`.

    Run it on the master's machine.

    [bold]Example[/]

      dorm log key
    """
    from dorm.local.home import key_file
    from dorm.master.sealing import read_key

    target = cx.target()
    public = read_key(path or target.seal_key() or key_file(target.cluster)).public
    if output in (Format.json, Format.yaml):
        show_document({"key": public}, output)
    else:
        console.print(Text(public), soft_wrap=True)
