"""Many seeds, over several processes: the outcome of each, and the figures of all."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import msgspec

from tests.rotation.simulated import RotatingHistory, rotates
from tests.simulation.bad_nodes import BadNodes, has_bad_nodes
from tests.simulation.history import History, Outcome
from tests.simulation.variants import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType

LONGEST_S = 60
"""Time limit for one seed: a history of two virtual minutes takes a fraction of a second."""


class Choice(msgspec.Struct, frozen=True):
    """What to play, in addition to the seed."""

    only: tuple[int, ...] | None = None
    """These faults of the schedule, None for all."""
    apps: tuple[int, ...] | None = None
    variant: str = ""
    """A deliberately broken variant: a name in `VARIANTS`."""
    rotate: bool = False
    """Rotate the log in every history, not only in those of some seeds (`tests.rotation.simulated.rotates`)."""
    whole_story: bool = False
    """Tell the story even if nothing was broken."""


class Played(msgspec.Struct, frozen=True):
    """One seed's outcome and its cost."""

    outcome: Outcome
    cpu_s: float


def play(seed: int, choice: Choice) -> Played:
    """Never raises: an error of the simulation itself, or a history without end, is a failure as well."""
    begun = time.process_time()
    _set_alarm(LONGEST_S)
    try:
        outcome = _outcome(seed, choice)
    except TimeoutError:
        outcome = Outcome(seed=seed, broken=f"seed {seed}: not played to its end in {LONGEST_S} s")
    except Exception as error:
        outcome = Outcome(seed=seed, broken=f"seed {seed}: {type(error).__name__}: {error}")
    finally:
        _set_alarm(0)
    return Played(outcome, time.process_time() - begun)


def history_of(seed: int, choice: Choice, alter: Callable[[History], None] = lambda _: None) -> History:
    """Return the history of a seed, before it is played; one in eight rotates its log, and one in eight has bad nodes."""
    kind = RotatingHistory if choice.rotate or rotates(seed) else BadNodes if has_bad_nodes(seed) else History
    return kind(seed, only=choice.only, apps=choice.apps, alter=alter)


def _outcome(seed: int, choice: Choice) -> Outcome:
    if not choice.variant:
        return history_of(seed, choice).run(tell=choice.whole_story)
    with VARIANTS[choice.variant].broken() as alter:
        return history_of(seed, choice, alter).run(tell=choice.whole_story)


def _set_alarm(seconds: int) -> None:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)


def play_all(seeds: Collection[int], choice: Choice, jobs: int, most_failures: int = 0) -> Iterator[Played]:
    """Yield outcomes as they arrive; end early after this many failures (0: never)."""
    failures = 0
    if jobs <= 1:
        for seed in seeds:
            played = play(seed, choice)
            yield played
            failures += bool(played.outcome.broken)
            if most_failures and failures >= most_failures:
                return
        return
    with ProcessPoolExecutor(jobs, get_context("forkserver")) as pool:
        for played in pool.map(play, seeds, [choice] * len(seeds), chunksize=8):
            yield played
            failures += bool(played.outcome.broken)
            if most_failures and failures >= most_failures:
                pool.shutdown(cancel_futures=True)
                return


class Figures:
    """Figures of all seeds."""

    def __init__(self) -> None:
        self.seeds = 0
        self.failed: list[int] = []
        self.faults: Counter[str] = Counter()
        self.recoveries: list[float] = []
        self.submissions = self.lost = self.doubled = self.records = 0
        self.virtual_s = self.cpu_s = 0.0

    def add(self, played: Played) -> None:
        outcome = played.outcome
        self.seeds += 1
        self.failed += [outcome.seed] if outcome.broken else []
        self.faults.update(outcome.faults)
        self.recoveries += outcome.recoveries
        self.submissions += outcome.submissions
        self.lost += outcome.lost
        self.doubled += outcome.doubled
        self.records += outcome.records
        self.virtual_s += outcome.virtual_s
        self.cpu_s += played.cpu_s

    def report(self) -> dict[str, Any]:
        """Return the report.  Times are seconds; all are virtual except for `cpu_s`."""
        times = sorted(self.recoveries)
        return {
            "seeds": self.seeds,
            "seeds_failed": len(self.failed),
            "failed": self.failed[:100],
            "faults_injected": sum(self.faults.values()),
            "submissions": self.submissions,
            "submissions_lost": self.lost,
            "generations_doubled": self.doubled,
            "recovery_p50_s": times[len(times) // 2] if times else None,
            "recovery_max_s": times[-1] if times else None,
            "records": self.records,
            "virtual_s": round(self.virtual_s),
            "cpu_s": round(self.cpu_s, 1),
            "faults": dict(self.faults.most_common()),
        }


class Progress:
    """A progress line that is overwritten, on a terminal only."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._clock = clock
        self._begun = clock()
        self._told = 0.0

    def tell(self, figures: Figures, *, last: bool = False) -> None:
        now = self._clock()
        if not sys.stderr.isatty() and not last and now - self._told < 30:
            return
        if last or now - self._told > 0.5:
            self._told = now
            rate = figures.seeds / max(0.001, now - self._begun)
            end = "\n" if last or not sys.stderr.isatty() else ""
            faults = sum(figures.faults.values())
            print(
                f"\r{figures.seeds:,} of {self._total:,} seeds, {rate:.1f} a second, {faults:,} faults, "
                f"{len(figures.failed)} failed",
                end=end,
                file=sys.stderr,
                flush=True,
            )


def command(seed: int, choice: Choice, *more: str) -> str:
    """Return the command that repeats it."""
    words = [os.path.basename(sys.executable), "-m", "tests.simulation", "--seed", str(seed), *more]
    if choice.rotate:
        words.append("--rotate")
    if choice.variant:
        words += ["--variant", f'"{choice.variant}"']
    for name, numbers in (("--only", choice.only), ("--apps", choice.apps)):
        if numbers is not None:
            words += [name, ",".join(map(str, numbers)) or "none"]
    return " ".join(words)
