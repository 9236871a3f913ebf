"""The options behind a workload's name on the command line: `paper,hours=6,speed=amdahl:0.98`.

A reader of a workload takes the options it knows, one by one, and calls `done` at the end; any option left over is then an
error, and the message lists the known ones.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING, TypeVar

from dorm_lab.workloads.draws import DistributionError, distribution
from events.quantities import QuantityError, duration, short
from replay.simulator import SimulationError
from replay.simulator.speed import Amdahl, Linear, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm_lab.workloads.draws import Distribution
    from replay.simulator.speed import Speed

Choice = TypeVar("Choice", bound=str)

_NEXT = re.compile(r",(?=[a-z_]+=)")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""Numbers in options and in traces.  Python would also accept `1_000`, `nan` and the digits of other scripts."""


class WrongOption(SimulationError):
    """The text that names a workload is wrong; unusable files raise other errors."""

    code = "workload.option.malformed"


def split(text: str) -> tuple[str, dict[str, str]]:
    """Return the text before the options, which may itself contain commas, and the options.  Raises WrongOption."""
    head, *parts = _NEXT.split(text)
    given: dict[str, str] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name in given:
            raise WrongOption(f"workload {short(text)}: {name} is given twice", code="workload.option.given_twice")
        given[name] = value.strip()
    return head.strip(), given


class Options:
    """The options of one workload.  Raises WrongOption for every invalid value, with the name of the option."""

    def __init__(self, of: str, given: dict[str, str]) -> None:
        self._of = of
        self._left = dict(given)
        self._known: list[str] = []

    def text(self, name: str) -> str | None:
        self._known.append(name)
        value = self._left.pop(name, None)
        if value == "":
            raise self.error(name, "the value after = is missing")
        return value

    def number(self, name: str, default: float, *, above: float = -math.inf, most: float = math.inf) -> float:
        text = self.text(name)
        if text is None:
            return default
        value = float(text) if NUMBER.fullmatch(text) else math.nan
        if not above < value <= most or math.isinf(value):
            limits = (f" above {above:g}" if above > -math.inf else "") + (
                f", at most {most:g}" if most < math.inf else ""
            )
            problem = "malformed" if math.isnan(value) else "out_of_range"
            raise self.error(name, f"expected a number{limits}, got {short(text)}", problem)
        return value

    def whole(self, name: str, default: int | None, *, least: int, most: int) -> int | None:
        text = self.text(name)
        if text is None:
            return default
        whole = re.fullmatch(r"\d{1,12}", text, re.ASCII)
        if not whole or not least <= int(text) <= most:
            message = f"expected a whole number from {least} to {most}, got {short(text)}"
            raise self.error(name, message, "out_of_range" if whole else "malformed")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name)
        if text is None:
            return default
        try:
            seconds = duration(text)
        except QuantityError as error:
            raise self.error(name, str(error), error.problem) from None
        if not seconds:
            raise self.error(name, "expected more than 0", "out_of_range")
        return seconds

    def choice(self, name: str, choices: Sequence[Choice], default: Choice) -> Choice:
        text = self.text(name)
        if text is None:
            return default
        for choice in choices:
            if choice == text:
                return choice
        raise self.error(name, f"expected {', '.join(choices[:-1])} or {choices[-1]}, got {short(text)}")

    def drawn(self, name: str, default: str, *, durations: bool = False) -> Distribution:
        """Return a distribution; with `durations`, of seconds, which may be written `3h`."""
        try:
            return distribution(self.text(name) or default, durations=durations)
        except DistributionError as error:
            raise self.error(name, str(error), error.problem) from None

    def speed(self, name: str = "speed") -> Speed:
        """Parse `linear`, `amdahl:0.95` or `table:1:1:4:3.5:8:6` (containers and rate in turn), relative to one container."""
        text = self.text(name) or "linear"
        kind, *values = text.split(":")
        numbers = [float(value) if NUMBER.fullmatch(value) else math.nan for value in values]
        if kind == "linear" and not values:
            return Linear()
        if kind == "amdahl" and len(numbers) == 1 and 0 <= numbers[0] <= 1:
            return Amdahl(parallel=numbers[0])
        if kind == "table" and (table := _table(numbers)):
            return table
        raise self.error(name, f"expected linear, amdahl:0.95 or table:1:1:4:3.5, got {short(text)}")

    def faster(self, name: str) -> tuple[str, float, float] | None:
        """Parse `fast:3` or `fast:3:0.5`: a type of nodes, how many times as fast apps are there, and which part of them."""
        text = self.text(name)
        if text is None:
            return None
        kind, *values = text.split(":")
        numbers = [float(value) if NUMBER.fullmatch(value) else math.nan for value in values]
        times, part = (*numbers, 1.0)[:2] if len(numbers) in (1, 2) else (math.nan, math.nan)
        if kind and 0.01 <= times <= 100 and 0 < part <= 1:  # NaN is in no range.
            return kind, times, part
        raise self.error(name, f"expected fast:3 or fast:3:0.5, got {short(text)}")

    def done(self) -> None:
        """Refuse the options that are left."""
        for name in self._left:
            close = difflib.get_close_matches(name, self._known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(self._known)}"
            text = f"workload {self._of}: unknown option {short(name)}{hint}"
            raise WrongOption(text, code="workload.option.unknown")

    def error(self, name: str, message: str, problem: str = "malformed") -> WrongOption:
        """Return the error of an option; `problem` is the last word of its code."""
        return WrongOption(f"workload {self._of}: {name}: {message}", code=f"workload.option.{problem}")


def _table(numbers: list[float]) -> Table | None:
    """Return pairs of containers and rates, ascending by containers; None for anything else."""
    counts, rates = numbers[::2], numbers[1::2]
    whole = all(0 < count <= 100_000 and count == int(count) for count in counts)  # NaN is in no range.
    if not numbers or len(numbers) % 2 or not whole or not all(0 < rate < math.inf for rate in rates):
        return None
    points = tuple((int(count), rate) for count, rate in zip(counts, rates, strict=True))
    return Table(points) if list(points) == sorted(dict(points).items()) else None
