"""The progress file of a container: JSON lines that the app appends, turned into facts at a limited rate.

    {"step": 120, "loss": 0.31, "samples_per_s": 950}      progress; of an app with a range of batch sizes also "noise"
    {"checkpoint": 120}                                    saved up to this step
    {"request_size": 2, "reason": "…"}                     more than 2 containers gain nothing; null withdraws that

and of live apps (`elastic: live`), whose other words are in events/kinds/agents.py

    {"membership": 5, "step": 1200, "members": [0, 3], "cause": "grow", "pause_s": 0.012}    a membership trains
    {"epoch": 3, "step": 1260, "samples": 1797, "ledger": "64 hex digits"}                   an epoch of data has ended

Each fact is the latest of its kind: at most one of each is published in `interval_s`, and a request for a size at
most once in `REQUEST_S`.  `agents.progress.watermarks` decides which of them go on the log.  Facts that the rate held
back are published when the container has ended, before its end is reported, except requests, which then have no
purpose.  No epochs are left out: a fact names all epochs that ended since the last one, those with the same ledger as
one run.

The file is the app's, and may hold anything: lines that are not of this form are skipped, half-written ones wait for their
end, lines longer than `LONGEST_LINE` are left out.  One look reads at most `LONGEST_READ` bytes.  If the unread part of a
file exceeds `MOST_BEHIND` (the app writes faster, or made a hole of gigabytes), only its end is read.

The id of each fact holds the end of its line, in bytes from the start of the file.  So a restarted agent knows from the log
which lines were published, and continues after them: nothing is reported twice, and lines written during an outage of the log
are not lost.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from agents.progress.lines import decoded, fault_of, loss_of, number_of, step_of
from events.kinds import (
    LONGEST_EXAMPLE,
    MOST_RUNS,
    AppCheckpointed,
    AppProgressed,
    AppResizeRequested,
    EpochCompleted,
    EpochRun,
    MembershipChanged,
    ProgressLinesSkipped,
)
from events.limits import clipped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agents.runtime.interface import Key

LONGEST_READ = 256 * 1024
"""Bytes read at once, so that an app which floods its file can't fill the agent's memory."""
MOST_BEHIND = 4 * 1024 * 1024
"""Bytes that may wait to be read; earlier ones are skipped."""
LONGEST_LINE = 64 * 1024
"""Bytes."""
MOST_TRIES = 64
"""Lines of one read that are decoded for each kind of fact, but epochs."""
MOST_EPOCHS = 4096
"""Lines of one read that are decoded for epochs: more than have room in it."""
REQUEST_S = 10.0
"""Seconds between two requests of one container that are published."""
SKIPPED_S = 60.0
"""Seconds between two reports of lines that can't be used."""
_LARGEST_SIZE = 100_000
_LONGEST_REASON = 200
"""Characters of a request's reason: it is repeated wherever the app's size is explained."""

ProgressFact = (
    AppProgressed | AppCheckpointed | AppResizeRequested | MembershipChanged | EpochCompleted | ProgressLinesSkipped
)


class Told(msgspec.Struct):
    """The end of the last line, in bytes, whose fact of each kind the log has."""

    checkpointed: int = 0
    progressed: int = 0
    membership: int = 0
    epoch: int = 0
    request: int = 0
    skipped: int = 0


TOLD: dict[type[ProgressFact], Literal["checkpointed", "progressed", "membership", "epoch", "request", "skipped"]] = {
    AppCheckpointed: "checkpointed",
    AppProgressed: "progressed",
    MembershipChanged: "membership",
    EpochCompleted: "epoch",
    AppResizeRequested: "request",
    ProgressLinesSkipped: "skipped",
}
"""The field of `Told` for each kind of fact."""
_LIVE = (MembershipChanged, EpochCompleted)


class ProgressFile:
    """One container's file and how far it was read; `told` is the part of it that the log has."""

    def __init__(
        self, key: Key, path: Path, interval_s: float, told: Told | None = None, *, live: bool = False
    ) -> None:
        """`live` also reads what members of a live app write."""
        self._key = key
        self._path = path
        self._interval_s = interval_s
        self._told = told or Told()
        self._live = live
        kinds = [field for kind, field in TOLD.items() if live or kind not in _LIVE]
        self._offset = min(getattr(self._told, field) for field in kinds)
        self._cut = 0
        """Bytes that were ever cut off the file: positions in ids only grow."""
        self._rest = b""
        """The last line, while it is incomplete."""
        self._torn = False
        """Whether the next bytes are the rest of a line that is skipped."""
        self._progress: AppProgressed | None = None
        self._progress_at = -math.inf
        self._checkpoint: AppCheckpointed | None = None
        self._checkpoint_at = -math.inf
        self._held: dict[type[ProgressFact], ProgressFact] = {}
        """The newest fact of each kind that only live apps have, until it is due."""
        self._held_at: dict[type[ProgressFact], float] = {}
        self._request: AppResizeRequested | None = None
        self._request_at = -math.inf
        self._requested: tuple[int, str] | None = None
        """Size and reason of the last request that was published: repeats are left out."""
        self._faults: ProgressLinesSkipped | None = None
        """The lines so far that could not be used."""
        self._faults_said: tuple[int, float] = 0, -math.inf
        """How many of them were published, and when."""
        self.saved = self._told.checkpointed
        """Where the newest line about a checkpoint ends, also while the rate holds it back."""
        self.skipped = 0
        """Bytes never read: of lines that are too long, and where the app writes faster than it is read."""

    def read(self, now_s: float, *, final: bool = False) -> list[ProgressFact]:
        """Return the facts to publish now, with ids unique within this file.  `now_s` is monotonic seconds; `final`
        includes facts that the rate held back.  Blocks while it reads at most `LONGEST_READ` bytes, or `MOST_BEHIND`
        with `final`."""
        left = MOST_BEHIND if final else LONGEST_READ
        while left > 0:
            chunk = self._read_chunk()
            self._take(chunk)
            left -= len(chunk)
            if len(chunk) < LONGEST_READ:
                break
        return self._due(now_s, final=final)

    def _due(self, now_s: float, *, final: bool) -> list[ProgressFact]:
        facts: list[ProgressFact] = []
        asked = self._request
        if asked is not None and not final and now_s - self._request_at >= max(REQUEST_S, self._interval_s):
            self._request = None
            if (asked.containers, asked.reason) != self._requested:
                facts.append(asked)
                self._request_at, self._requested = now_s, (asked.containers, asked.reason)
        for kind in _LIVE:  # The membership first: later work was done in it.
            held = self._held.get(kind)
            if held is not None and (final or now_s - self._held_at.get(kind, -math.inf) >= self._interval_s):
                facts.append(held)
                self._held_at[kind] = now_s
                del self._held[kind]
        saved, done = self._checkpoint, self._progress
        if saved is not None and (final or now_s - self._checkpoint_at >= self._interval_s):
            # Progress up to the checkpoint comes first, so that lost work is never counted twice.
            if done is not None and done.step <= saved.step:
                facts.append(done)
                done, self._progress_at = None, now_s
            facts.append(saved)
            self._checkpoint, self._checkpoint_at = None, now_s
        if done is not None and (final or now_s - self._progress_at >= self._interval_s):
            facts.append(done)
            done, self._progress_at = None, now_s
        self._progress = done
        facts += self._due_faults(now_s, final=final)
        return facts

    def _due_faults(self, now_s: float, *, final: bool) -> list[ProgressFact]:
        found, (said, at) = self._faults, self._faults_said
        if found is None or found.lines == said or not (final or now_s - at >= SKIPPED_S):
            return []
        self._faults_said = found.lines, now_s
        return [found] if int(found.id.rpartition(".")[2]) > self._told.skipped else []

    def _read_chunk(self) -> bytes:
        try:
            # The app controls the file: a link in its place must not lead to files of the host, and a pipe or a device must
            # not block the agent.
            with open(self._path, "rb", buffering=0, opener=_open_no_link) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return b""
                self._keep_up(status)
                self._skip_hole(file.fileno(), status.st_size)
                file.seek(self._offset)
                chunk = file.read(LONGEST_READ) or b""
        except OSError:
            return b""
        self._offset += len(chunk)
        return chunk

    def _keep_up(self, status: os.stat_result) -> None:
        """Move to the end of a file that was shortened, and to its last part if there is too much to read."""
        size = status.st_size
        if size < self._offset:
            self._cut += self._offset - size
            self._offset, self._rest, self._torn = size, b"", False
        # Of a sparse file only its data counts (`st_blocks`, of 512 bytes): its holes are skipped.
        if min(size - self._offset, 512 * status.st_blocks) > MOST_BEHIND:
            self._skip_to(max(self._offset, size - MOST_BEHIND))

    def _skip_hole(self, descriptor: int, size: int) -> None:
        if self._offset >= size:
            return
        try:
            data = os.lseek(descriptor, self._offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: only a hole up to the end.
                return
            data = size
        if data > self._offset:
            self._skip_to(data)

    def _skip_to(self, place: int) -> None:
        self.skipped += len(self._rest) + place - self._offset
        self._offset, self._rest, self._torn = place, b"", True

    def _take(self, chunk: bytes) -> None:
        """Keep the newest progress and the newest checkpoint of the complete lines."""
        text = self._rest + chunk
        begin = self._cut + self._offset - len(text)
        if self._torn:
            end = text.find(b"\n") + 1
            self.skipped += end or len(text)
            self._torn = not end
            text, begin = text[end:] if end else b"", begin + (end or len(text))
        whole = text.rfind(b"\n") + 1
        self._rest = text[whole:]
        if len(self._rest) > LONGEST_LINE:
            self.skipped += len(self._rest)
            self._note_fault(self._rest, f"it is longer than {LONGEST_LINE:,} bytes", begin + len(text))
            self._rest, self._torn = b"", True
        self._look_for_faults(text[:whole], begin)
        app, generation, _ = self._key
        for end, words in self._newest_first(text[:whole], b'"checkpoint"'):
            saved = step_of(words.get("checkpoint"))
            if saved is not None:
                if begin + end > self._told.checkpointed:
                    self.saved = max(self.saved, begin + end)
                    self._checkpoint = _placed(AppCheckpointed(app=app, generation=generation, step=saved), begin + end)
                break
        for end, words in self._newest_first(text[:whole], b'"step"'):
            step = step_of(words.get("step")) if not self._live or not {"membership", "epoch"} & words.keys() else None
            if step is not None:
                if begin + end > self._told.progressed:
                    loss, loss_is = loss_of(words.get("loss"))
                    self._progress = _placed(
                        AppProgressed(
                            app=app,
                            generation=generation,
                            step=step,
                            loss=loss,
                            loss_is=loss_is,
                            samples_per_s=number_of(words.get("samples_per_s")),
                            noise=number_of(words.get("noise")),
                        ),
                        begin + end,
                    )
                break

        self._take_request(text[:whole], begin)
        if self._live:
            self._take_live(text[:whole], begin)

    def _look_for_faults(self, lines: bytes, begin: int) -> None:
        """Count the lines that can't be used; of many lines at once only the last ones are looked at."""
        looked_at = lines.rsplit(b"\n", MOST_TRIES + 1)[-MOST_TRIES - 1 :]
        end = begin + len(lines) - sum(len(line) + 1 for line in looked_at) + 1
        for line in looked_at:
            end += len(line) + 1
            if len(line) <= LONGEST_LINE and (fault := fault_of(line)):
                self._note_fault(line, fault, end)

    def _note_fault(self, line: bytes, fault: str, end: int) -> None:
        """`end` is where the line ends in the file."""
        id = f"{ProgressLinesSkipped.__name__}.{end}"
        if self._faults is not None:
            self._faults = replace(self._faults, lines=self._faults.lines + 1, id=id)
            return
        text = " ".join(line[: 4 * LONGEST_EXAMPLE].decode(errors="replace").split())
        example = clipped("".join(one if one.isprintable() else "\ufffd" for one in text), LONGEST_EXAMPLE)
        app, generation, slot = self._key
        self._faults = ProgressLinesSkipped(
            id=id, app=app, generation=generation, slot=slot, lines=1, example=example, reason=fault
        )

    def _take_request(self, lines: bytes, begin: int) -> None:
        """Keep the newest request for a size."""
        app, generation, _ = self._key
        for end, words in self._newest_first(lines, b'"request_size"'):
            size = words.get("request_size", -1)
            size = 0 if size is None else size
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _LARGEST_SIZE:
                continue
            if begin + end > self._told.request:
                reason = words.get("reason")
                text = clipped(" ".join(reason.split()), _LONGEST_REASON) if size and isinstance(reason, str) else ""
                fact = AppResizeRequested(app=app, generation=generation, containers=size, reason=text)
                self._request = replace(fact, id=f"{AppResizeRequested.__name__}.{begin + end}")
            break

    def _take_live(self, lines: bytes, begin: int) -> None:
        """Keep the newest membership and all epochs of these lines, which begin there in the file."""
        app, generation, _ = self._key
        about = {"app": app, "generation": generation}
        for end, words in self._newest_first(lines, b'"membership"'):
            fact = _live_fact(MembershipChanged, words, about)
            if fact is not None:
                if begin + end > self._told.membership:
                    self._held[MembershipChanged] = replace(fact, id=f"MembershipChanged.{begin + end}")
                break
        for end, words in reversed(list(self._newest_first(lines, b'"epoch"', MOST_EPOCHS))):
            fact = _live_fact(EpochCompleted, words, about)
            if isinstance(fact, EpochCompleted) and begin + end > self._told.epoch:
                held = self._held.get(EpochCompleted)
                fact = replace(fact, id=f"EpochCompleted.{begin + end}")
                self._held[EpochCompleted] = _after(held, fact) if isinstance(held, EpochCompleted) else fact

    def _newest_first(self, lines: bytes, word: bytes, tries: int = MOST_TRIES) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the objects of lines that hold the word, newest first, each with the position of its line's end; at most
        `tries`, so that lines which only look like facts cost little."""
        before = len(lines)
        for _ in range(tries):
            found = lines.rfind(word, 0, before)
            if found < 0:
                return
            before, end = lines.rfind(b"\n", 0, found) + 1, lines.find(b"\n", found) + 1
            if end - before > LONGEST_LINE:
                self.skipped += end - before
                continue
            words = decoded(lines[before : end - 1])
            if words is not None:
                yield end, words


def _live_fact(
    kind: type[MembershipChanged] | type[EpochCompleted], words: dict[str, Any], about: dict[str, Any]
) -> MembershipChanged | EpochCompleted | None:
    """Return the fact of a line that a member of a live app wrote; None if it is not of that form.  Unknown words are ignored,
    and words that only the agent may say."""
    said = {name: words[name] for name in _SAID[kind] if name in words}
    if kind is MembershipChanged and "cause" in words:
        said["change"] = words["cause"]  # An event's own `cause` names the event on the log that led to it.
    try:
        return msgspec.convert({"kind": kind.__name__, **said, **about}, kind)
    except (msgspec.ValidationError, RecursionError):
        return None


def _after(held: EpochCompleted, newest: EpochCompleted) -> EpochCompleted:
    """Return the newest epoch with those that are held back; if they are too many runs, without the oldest."""
    runs, omitted = list(held.earlier), held.omitted
    last = runs[-1] if runs else None
    if last is not None and (last.last + 1, last.samples, last.ledger) == (held.epoch, held.samples, held.ledger):
        runs[-1] = replace(last, last=held.epoch)
    else:
        runs.append(EpochRun(held.epoch, held.epoch, held.samples, held.ledger))
    if len(runs) > MOST_RUNS:
        omitted += runs[0].last - runs[0].first + 1
        del runs[0]
    return replace(newest, earlier=runs, omitted=omitted)


_SAID: dict[type[ProgressFact], tuple[str, ...]] = {
    MembershipChanged: (
        "membership", "step", "members", "lost", "repeated", "warm_up_s", "barrier_s", "pause_s", "bytes_moved"
    ),
    EpochCompleted: ("epoch", "step", "samples", "ledger"),
}  # fmt: skip
_Fact = TypeVar("_Fact", AppProgressed, AppCheckpointed)


def _placed(fact: _Fact, end: int) -> _Fact:
    return replace(fact, id=f"{type(fact).__name__}.{end}")


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
