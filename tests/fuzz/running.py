"""Running the fuzz: from a seed to inputs, and from a failure to the smallest input that still fails."""

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

from tests.fuzz.target import Parts, pack_parts, parts_of
from tests.fuzz.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fuzz.target import Target

SLOW_S = 2.0
"""CPU seconds that no input may take; most take less than a thousandth of that."""
HANG_S = 20.0
"""After this it is interrupted."""
MEMORY = 4 << 30
"""Bytes of address space that a process may have: what takes more fails."""
_TRIES = 400
"""Smaller inputs that are tried for one failure."""
_MOST_FAILURES = 20
"""Of one target in one piece of work: what is broken that badly needs no more examples."""


class Hang(BaseException):
    """It took too long.  Nothing that handles errors handles this."""


class Slow(AssertionError):
    """It came to an end, and took too long."""


class Failure(msgspec.Struct):
    """An input that did harm."""

    target: str
    name: str
    """Seed and number, or the file that it came from."""
    error: str
    where: str
    """The last place of ours that it went through: failures of one place are shown once."""
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
    """What came of it."""

    target: str
    inputs: int
    cpu_s: float
    peak_rss: int
    """Bytes, of the process that did it, so far."""
    failures: list[Failure]


def limit_memory() -> None:
    """Of this process, for good."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def input_of(target: Target, seed: int, number: int) -> bytes:
    return target.make(Random(f"{seed}/{number}"))


def run(work: Work) -> Done:
    target = TARGETS[work.target]
    failures: list[Failure] = []
    began, tried = time.process_time(), 0
    with _quiet(), _alarms():
        for number in range(work.first, work.first + work.count):
            data = input_of(target, work.seed, number)
            tried += 1
            if (failure := fails(target, data, f"{work.seed}/{number}")) is not None:
                if failure.where not in [known.where for known in failures]:
                    failure = smallest(target, failure)
                failures.append(failure)
                if len(failures) >= _MOST_FAILURES:
                    break
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Done(work.target, tried, time.process_time() - began, peak, failures)


def fails(target: Target, data: bytes, name: str) -> Failure | None:
    """What an input does wrong, None where it is borne."""
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


def smallest(target: Target, failure: Failure) -> Failure:
    """The same failure (of the same kind, at the same place) by as little as was found in some hundred tries."""
    tries = 0
    best = failure
    changed = not failure.where.startswith(("Hang", "Slow"))  # Those would take as long again with each try.
    while changed and tries < _TRIES:
        changed = False
        for data in _smaller(best.data):
            tries += 1
            found = fails(target, data, failure.name)
            if found is not None and found.where == failure.where:
                best, changed = found, True
                break
            if tries >= _TRIES:
                break
    return best


def _smaller(data: bytes) -> Iterator[bytes]:
    """Without some of its parts, then without some bytes of a part, or of the whole."""
    given = parts_of(data)
    if not given.parts:
        yield from _shorter(data)
        return
    for index in range(len(given.parts)):
        yield pack_parts(Parts(given.begin, given.parts[:index] + given.parts[index + 1 :]))
    for index, part in enumerate(given.parts):
        for at, piece in enumerate(part):
            for shorter in _shorter(piece):
                changed = [*part[:at], shorter, *part[at + 1 :]]
                yield pack_parts(Parts(given.begin, [*given.parts[:index], changed, *given.parts[index + 1 :]]))


def _shorter(data: bytes) -> Iterator[bytes]:
    size = len(data) // 2
    while size:
        for at in range(0, len(data), size):
            yield data[:at] + data[at + size :]
        size //= 2


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
    """Nobody reads a million warnings."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent


def planned(inputs: int, seed: int, wanted: list[str], piece: int) -> list[Work]:
    """All work of a run in pieces, so that every target is met early and again and again."""
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
    """As hex digits in lines, which diffs and mails bear."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / failure.file
    text = failure.data.hex()
    path.write_text("\n".join(text[at : at + 120] for at in range(0, len(text), 120)) + "\n")
    return path


def saved(path: Path) -> tuple[Target, bytes]:
    """Raises ValueError, LookupError for a file that is none of these."""
    return TARGETS[path.name.rsplit("-", 1)[0]], bytes.fromhex("".join(path.read_text().split()))


def repeat(path: Path) -> Failure | None:
    target, data = saved(path)
    with _quiet(), _alarms():
        return fails(target, data, path.name)
