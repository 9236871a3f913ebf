"""The command line of the sample apps."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from compose.apps.worker.failures import BadSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compose.apps.learning.model import Program


@dataclass(frozen=True, slots=True)
class Options:
    """The user's choices.  Times in seconds."""

    steps: int
    resume: bool
    seed: int
    batch: int
    learning_rate: float
    momentum: float
    l2: float
    checkpoint_every: int
    report_every: int
    pace: float
    connect_timeout: float
    peer_timeout: float
    sizes: dict[str, int]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadSetting(f"{message} (--help lists the options)")


def parse(program: Program, arguments: Sequence[str] | None) -> Options:
    """Parse the command line.  Raises `BadSetting`; ends the process for --help."""
    parser = _Parser(prog=f"python3 -m compose.apps.{program.name}", description=program.summary, allow_abbrev=False)
    add = parser.add_argument
    add("--steps", type=_whole(1), default=400, help="stop after this many (%(default)s)")
    add("--resume", action="store_true", help="resume from the checkpoint in DORM_CHECKPOINT_DIR")
    add("--seed", type=_whole(0), default=1, help="decides start and samples (%(default)s)")
    add("--batch", type=_whole(1), default=program.batch, help="samples per step over all workers (%(default)s)")
    add("--learning-rate", type=_number(0), default=program.learning_rate, help="(%(default)s)")
    add("--momentum", type=_number(0, 1), default=program.momentum, help="(%(default)s)")
    add("--l2", type=_number(0), default=program.l2, help="weight of the penalty on large parameters (%(default)s)")
    for name, size in program.sizes.items():
        add(f"--{name}", type=_whole(1, size.most), default=size.default, help=f"{size.help} (%(default)s)")
    add("--checkpoint-every", type=_whole(1), default=50, help="steps between checkpoints (%(default)s)")
    add("--report-every", type=_whole(1), default=5, help="steps between progress lines (%(default)s)")
    add(
        "--pace",
        type=_number(0, 60),
        default=0.0,
        help="least seconds that one of a step's 24 shards takes; a worker sleeps through what its computation leaves."
        " Stands for a heavier model on an accelerator of the worker's own, where the machine at hand has too few cores"
        " to show that more workers are faster (%(default)s)",
    )
    add(
        "--connect-timeout",
        type=_number(0.1, 86400),
        default=60.0,
        help="seconds to wait for all workers (%(default)s)",
    )
    add(
        "--peer-timeout",
        type=_number(0.1, 86400),
        default=30.0,
        help="seconds of silence after which one is lost (%(default)s)",
    )
    values = vars(parser.parse_args(arguments))
    sizes = {name: values.pop(name.replace("-", "_")) for name in program.sizes}
    return Options(**values, sizes=sizes)


def _whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    return convert


def _number(least: float, most: float = 1e6) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not (math.isfinite(value) and least <= value <= most):
            raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g}")
        return value

    return convert
