"""The progress file of a container: JSON lines that the app appends, turned into facts at a limited rate.

    {"step": 120, "loss": 0.31, "samples_per_s": 950}      progress; only the latest of a while is published
    {"checkpoint": 120}                                    saved up to this step; always published, and in order

The file is the app's: lines that are not of this form are skipped, half-written ones wait for their end.

Each fact has the end of its line, in bytes from the file's begin, in its id.  So an agent that restarts knows from the log
which lines were told, and goes on behind them: nothing is told twice, and what was written while no log took it is not lost.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from events.kinds import AppCheckpointed, AppProgressed

if TYPE_CHECKING:
    from pathlib import Path

    from agents.runtime import Key

LONGEST_READ = 256 * 1024
"""Bytes taken in one go, so that an app which floods its file can't fill our memory."""
_LARGEST_STEP = 2**53

ProgressFact = AppProgressed | AppCheckpointed


class Told(msgspec.Struct):
    """Up to the end of which line the log has a container's facts of each kind, in bytes."""

    checkpointed: int = 0
    progressed: int = 0


class ProgressFile:
    """One container's file and how far it was read; `told` is what the log has of it."""

    def __init__(self, key: Key, path: Path, interval_s: float, told: Told | None = None) -> None:
        self._key = key
        self._path = path
        self._interval_s = interval_s
        self._told = told or Told()
        self._offset = min(self._told.checkpointed, self._told.progressed)
        self._rest = b""
        self._rest_at = self._offset
        self._pending: AppProgressed | None = None
        self._published_at = -math.inf

    def read(self, now_s: float, *, final: bool = False) -> list[ProgressFact]:
        """Facts to publish now, with ids of this file alone.  `now_s` is monotonic seconds; `final` gives out what the rate
        held back.  Blocks."""
        facts: list[ProgressFact] = []
        while True:
            chunk = self._read_chunk()
            for end, line in self._lines(chunk):
                self._take(line, end, facts)
            if not final or len(chunk) < LONGEST_READ:
                break
        if self._pending and (final or now_s - self._published_at >= self._interval_s):
            facts.append(self._pending)
            self._pending, self._published_at = None, now_s
        return facts

    def _read_chunk(self) -> bytes:
        try:
            # The file is in the app's hands: a link in its place must not lead us to files of the host.
            with open(self._path, "rb", opener=_open_no_link) as file:
                file.seek(self._offset)
                chunk = file.read(LONGEST_READ)
        except OSError:
            return b""
        self._offset += len(chunk)
        return chunk

    def _lines(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """Whole lines with the place of their ends."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        found = []
        for line in lines:
            self._rest_at += len(line) + 1
            found.append((self._rest_at, line))
        if len(self._rest) > LONGEST_READ:
            self._rest_at += len(self._rest)
            self._rest = b""
        return found

    def _take(self, line: bytes, end: int, facts: list[ProgressFact]) -> None:
        try:
            words: Any = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if not isinstance(words, dict):
            return
        app, generation, _ = self._key
        if (saved := _step(words.get("checkpoint"))) is not None:
            # What was done up to the checkpoint is said first, so that lost work is never counted twice.
            if self._pending and self._pending.step <= saved:
                facts.append(self._pending)
                self._pending = None
            if end > self._told.checkpointed:
                facts.append(_placed(AppCheckpointed(app=app, generation=generation, step=saved), end))
        if (step := _step(words.get("step"))) is not None and end > self._told.progressed:
            self._pending = _placed(
                AppProgressed(
                    app=app,
                    generation=generation,
                    step=step,
                    loss=_number(words.get("loss")),
                    samples_per_s=_number(words.get("samples_per_s")),
                ),
                end,
            )


_Fact = TypeVar("_Fact", AppProgressed, AppCheckpointed)


def _placed(fact: _Fact, end: int) -> _Fact:
    return replace(fact, id=f"{type(fact).__name__}.{end}")


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _step(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_STEP:
        return value
    return None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
