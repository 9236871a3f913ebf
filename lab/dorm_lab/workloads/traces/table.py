"""Any CSV file with a header, and a mapping that names the meaning of its columns:

    csv:jobs.csv,submit=created,duration=runtime,containers=gpus,gpu=1,cpu=cores,memory=mem_mb:MB,user=team

`cpu`, `memory` and `gpu` are the demand of one container: a column, with a unit after a colon if its numbers have one, or one
amount for all.  Times are seconds on the file's own clock or since 1970, or dates such as 2017-10-09 07:01:55 (UTC).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm_lab.workloads.traces.jobs import Collected, Job, Rules
from dorm_lab.workloads.traces.rows import (
    LATEST_S,
    BrokenRow,
    Csv,
    count,
    is_calendar,
    moment,
    number,
    run_time,
)
from events.quantities import QuantityError, resource, short
from replay.simulator import SimulationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dorm_lab.workloads.options import Options
    from events.quantities import Quantity
    from replay.simulator.workload import Workload

RESOURCES = ("cpu", "memory", "gpu")
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}


def read(path: Path, options: Options, *, strict: bool = False, seed: int = 0) -> Workload:
    """Read the trace.  Besides those of all traces, options are columns:

    `submit`                  when it was submitted
    `duration`                seconds that it ran
    `containers`              that it had; default: one
    `cpu` `memory` `gpu`      demand of one container, at least one of them; a column, `column:unit` or an amount
    `name` `user` `weight`
    `n_min` `n_max`           instead of the rule `bounds`
    `delimiter`               comma, semicolon, tab or bar

    Raises SimulationError."""
    rules = Rules.of(options)
    delimiter = options.choice("delimiter", tuple(DELIMITERS), "comma")
    columns = {name: options.text(name) for name in ("submit", "duration", "containers", "name", "user", "weight")}
    columns |= {name: options.text(name) for name in ("n_min", "n_max")}
    amounts = {name: text for name in RESOURCES if (text := options.text(name))}
    options.done()
    for needed in ("submit", "duration"):
        if columns[needed] is None:
            raise options.error(needed, f"missing; write {needed}=COLUMN", "missing")
    if not amounts:
        text = "missing; give at least one of cpu=, memory= and gpu=, as a column or an amount per container"
        raise options.error("demand", text, "missing")
    table = Csv(path, delimiter=DELIMITERS[delimiter])
    collected = Collected(path, rules, strict=strict)
    collected.read(table.rows(), _reader(table, columns, amounts))
    return collected.workload("csv", seed)


def _reader(table: Csv, columns: dict[str, str | None], amounts: dict[str, str]) -> Callable[[list[str]], Job]:
    places = {name: table.column(column) for name, column in columns.items() if column is not None}
    demand = [_amount(table, name, text) for name, text in amounts.items()]
    clock = _Clock()

    def counted(name: str, fields: list[str], default: int) -> int:
        return count(fields[places[name]].strip(), columns[name] or name) if name in places else default

    def text(name: str, fields: list[str]) -> str:
        return fields[places[name]].strip() if name in places else ""

    def job(fields: list[str]) -> Job:
        duration_s = run_time(text("duration", fields), columns["duration"] or "")
        weight = number(text("weight", fields), columns["weight"] or "", most=1000) if "weight" in places else 1.0
        return Job(
            # Last, because an otherwise invalid row must not decide which clock the file has.
            containers=counted("containers", fields, 1),
            duration_s=duration_s,
            demand=tuple((name, amount(fields)) for name, amount in demand),
            name=text("name", fields),
            user=text("user", fields),
            weight=weight,
            n_min=counted("n_min", fields, 0),
            n_max=counted("n_max", fields, 0),
            at=clock.seconds(text("submit", fields), columns["submit"] or ""),
        )

    return job


class _Clock:
    """The clock of a file: the first valid row decides between dates and seconds, which cannot be compared."""

    def __init__(self) -> None:
        self._dates: bool | None = None

    def seconds(self, text: str, what: str) -> float:
        dates = is_calendar(text)
        value = moment(text, what) if dates else number(text, what, most=LATEST_S)
        if self._dates is None:
            self._dates = dates
        if dates != self._dates:
            message = f"{what} is {short(text)}, but the rows above have {'dates' if self._dates else 'seconds'}"
            raise BrokenRow(message, code="trace.value.other_clock")
        return value


def _amount(table: Csv, name: str, text: str) -> tuple[str, Callable[[list[str]], Quantity]]:
    """Return a function from a row to one container's demand of a resource, in a spec's units."""
    column, _, unit = text.partition(":")
    if column not in table.columns:
        try:
            resource(name, text)
        except QuantityError:
            message = f"{name}: {short(text)} is neither a column ({table.listed}) nor an amount"
            raise SimulationError(f"{table.path}: {message}", code="trace.column.missing") from None
        return name, lambda _: text
    place = table.column(column)

    def amount(fields: list[str]) -> Quantity:
        written = fields[place].strip() + unit
        try:
            resource(name, written)
        except QuantityError as error:
            raise BrokenRow(f"{column}: {error}", code=f"trace.value.{error.problem}") from None
        return written

    return name, amount
