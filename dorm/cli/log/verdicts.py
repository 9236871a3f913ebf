"""Results of a verification, for people: the log's seals, and every decision computed again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.errors import FAILED, Fail, WrongUsage
from dorm.cli.output import Format, console, counted, print_table, show_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay.audit.audit import Report
    from replay.audit.ledgers import LedgerReport
    from replay.audit.seal_checks import Expected, SealReport
    from replay.audit.slices import Divergence

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
            _say(line)
    if wrong := wrong_with(report):
        raise Fail(wrong, code="seal.differs")
    _say(f"the log is as it was sealed up to sequence {max(report.sealed_upto, report.expected_seq)}", "green")


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
        _say(line)
    if report.divergence is not None:
        _say(f"everything before sequence {report.divergence.seq} is as it should be, as far as checked")
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
    _say(f"the log was replayed and gave {same}; digest {report.digest}", "green")


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
    lines += [f"the part of node {one.node}, of record {one.seq}: {one.what}" for one in report.parts.wrong]
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


def show_divergence(found: Divergence) -> None:
    """Print which app would have got what, and the fields that differ."""
    if found.apps:
        rows = [
            {
                "app": app.app,
                "before": _places(app.before),
                "recorded": _places(app.recorded),
                "again": _places(app.again),
            }
            for app in found.apps
        ]
        print_table(rows, [("APP", "app"), ("HAD", "before"), ("RECORDED", "recorded"), ("AGAIN", "again")])
    # The table above already shows the placements, far more readably.
    fields = [d for d in found.differences if not (found.apps and ".changes[" in d.path)]
    for difference in fields:
        _say(f"  {difference.path}\n    recorded  {difference.recorded}\n    again     {difference.again}")


def _places(nodes: Mapping[str, int]) -> str:
    """Return `3: n1 ×2, n2 ×1`."""
    if not nodes:
        return "nothing"
    each: Sequence[str] = [f"{node} ×{count}" for node, count in nodes.items()]
    return f"{sum(nodes.values())}: {', '.join(each)}"


def _say(text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
