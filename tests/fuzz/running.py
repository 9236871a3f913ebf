"""Running the fuzz: from a seed to inputs, and by Hypothesis from a failure to the smallest input that still fails."""

from __future__ import annotations

import contextlib
import hashlib
import resource
import signal
import time
import traceback
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.errors import Flaky

from tests.fuzz.edits import Source
from tests.fuzz.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fuzz.target import Target

SLOW_S = 2.0
"""CPU seconds that no input may take; most take less than a thousandth of that."""
HANG_S = 20.0
"""Time after which it is interrupted."""
MEMORY = 4 << 30
"""The maximum address space of a process in bytes; an input that needs more fails."""
DECISIONS = 1024
"""Random bytes behind each input; only the longest lists of records read more."""
_MOST_FAILURES = 20
"""The maximum number of failures of one target in one piece of work: more examples would not help."""


class Hang(BaseException):
    """An input took too long.  No error handling catches this."""


class Slow(AssertionError):
    """An input was processed, but took too long."""


class Failure(msgspec.Struct):
    """An input that failed."""

    target: str
    name: str
    """Seed and number, or the file that it came from."""
    error: str
    where: str
    """The last place in our code: failures of one place are shown once."""
    data: bytes

    @property
    def file(self) -> str:
        return f"{self.target}-{hashlib.blake2b(self.data, digest_size=4).hexdigest()}.hex"


class Work(msgspec.Struct):
    """Inputs `first` to `first + count - 1` of a target under a seed."""

    target: str
    seed: int
    first: int
    count: int


class Done(msgspec.Struct):
    """The result of a piece of work."""

    target: str
    inputs: int
    cpu_s: float
    peak_rss: int
    """Peak memory of its process so far, in bytes."""
    failures: list[Failure]


def limit_memory() -> None:
    """Limit the memory of this process, permanently."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def source_of(seed: int | str, number: int) -> Source:
    """Return the decisions of one input."""
    return Source(Random(f"{seed}/{number}").randbytes(DECISIONS))


def run(work: Work) -> Done:
    target = TARGETS[work.target]
    found: list[Failure] = []
    began, tried = time.process_time(), 0
    with _quiet(), _alarms():
        for number in range(work.first, work.first + work.count):
            source = source_of(work.seed, number)
            data = target.make(source)
            tried += 1
            if (failure := fails(target, data, f"{work.seed}/{number}")) is not None:
                if failure.where not in [known.where for known in found]:
                    failure = smallest(target, failure, source.decisions)
                found.append(failure)
                if len(found) >= _MOST_FAILURES:
                    break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Done(work.target, tried, time.process_time() - began, peak, found)


def smallest(target: Target, failure: Failure, decisions: bytes) -> Failure:
    """Return the same failure (its kind and place) from the smallest decisions that Hypothesis finds."""
    if failure.where.startswith(("Hang", "Slow")):
        return failure  # each try would take as long again
    best = failure

    def again(changed: bytes) -> None:
        nonlocal best
        found = fails(target, target.make(Source(changed)), failure.name)
        if found is not None and found.where == failure.where:
            best = found  # the last one is the smallest
            raise AssertionError(found.where)

    size = len(decisions)  # of one size only: then Hypothesis takes them unchanged from its own input
    test: Any = settings(
        phases=(Phase.reuse, Phase.shrink), database=InMemoryExampleDatabase(), deadline=None,
        suppress_health_check=list(HealthCheck), verbosity=Verbosity.quiet,
    )(given(st.binary(min_size=size, max_size=size))(again))  # fmt: skip
    for attempt in (lambda: test.hypothesis.fuzz_one_input(decisions), test):
        with contextlib.suppress(AssertionError, Flaky):
            attempt()
    return best


def fails(target: Target, data: bytes, name: str) -> Failure | None:
    """Return the failure of an input, None if it passes."""
    began = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        target.check(data)
        took = time.process_time() - began
        if took > SLOW_S:
            raise Slow(f"{took:.1f} s of CPU for {len(data)} bytes")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        return Failure(target.name, name, words, _where(error), data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    ours = [
        f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}" for frame in frames if "<" not in frame.filename
    ]
    return f"{type(error).__name__} at {ours[-1] if ours else 'an unknown place'}"


@contextlib.contextmanager
def _alarms() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Hang(f"no end after {HANG_S:g} s")

    before: Any = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A million warnings are of no use."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent


def planned(inputs: int, seed: int, wanted: list[str], piece: int) -> list[Work]:
    """Yield the work of a run in pieces, so that every target comes early and repeatedly."""
    targets = [TARGETS[name] for name in wanted or TARGETS]
    whole = sum(target.share for target in targets)
    counts = {target.name: -(-inputs * target.share // whole) for target in targets}
    work = [
        Work(name, seed, first, min(piece, count - first))
        for name, count in counts.items()
        for first in range(0, count, piece)
    ]
    return sorted(work, key=lambda one: (one.first, one.target))


def save(folder: Path, failure: Failure) -> Path:
    """Save it as lines of hex digits, which survive diffs and mails."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / failure.file
    text = failure.data.hex()
    path.write_text("\n".join(text[at : at + 120] for at in range(0, len(text), 120)) + "\n")
    return path


def saved(path: Path) -> tuple[Target, bytes]:
    """Read a saved input.  Raises ValueError, LookupError for any other file."""
    return TARGETS[path.name.rsplit("-", 1)[0]], bytes.fromhex("".join(path.read_text().split()))


def repeat(path: Path) -> Failure | None:
    target, data = saved(path)
    with _quiet(), _alarms():
        return fails(target, data, path.name)
