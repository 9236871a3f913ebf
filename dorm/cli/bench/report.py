"""Output common to all benches: progress, the table of figures, and the machine."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich.text import Text

from dorm.cli.output import Format, print_table, progress_console, show_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dorm.bench.report import Report


@contextlib.contextmanager
def progress(name: str) -> Iterator[Callable[[str], None]]:
    """Show progress in one changing line on stderr; nothing if that is not a terminal."""
    with progress_console.status(Text(f"bench {name}")) as status:
        yield lambda text: status.update(Text(f"bench {name}: {text}"))


def show_report(report: Report, output: Format) -> None:
    """Print a report as a document, or as a table of its figures."""
    if output in (Format.json, Format.yaml):
        show_document(report, output)
        return
    show_figures(report)
    show_machine(report)


def show_figures(report: Report) -> None:
    """Print a table of the figures, with their goals if they have one."""
    answers = {None: "", True: "yes", False: "no"}
    rows = [
        {
            "name": name, "value": f"{figure.value:,.4g}" if figure.value < 1000 else f"{figure.value:,.0f}", "unit": figure.unit,
            "goal": figure.goal or "", "reached": answers[figure.reached],
        }
        for name, figure in report.figures.items()
    ]  # fmt: skip
    print_table(
        rows,
        [("FIGURE", "name"), ("VALUE", "value"), ("UNIT", "unit"), ("GOAL", "goal"), ("REACHED", "reached")],
    )


def show_machine(report: Report) -> None:
    """Print the machine in one line under the figures."""
    machine = report.machine
    print_table(
        [
            {
                "where": f"{machine.cpu}, {machine.cores} cores, {machine.kernel}, {machine.python}, load {machine.load[0]:.1f}"
            }
        ],
        [("MEASURED ON", "where")],
    )
