"""The progress file of a container: JSON lines that the app appends, turned into facts at a limited rate.

    {"step": 120, "loss": 0.31, "samples_per_s": 950}      progress; of an app with a range of batch sizes also "noise"
    {"checkpoint": 120}                                    saved up to this step
    {"request_size": 2, "reason": "…"}                     more than 2 containers gain nothing; null withdraws that

and of live apps (`elastic: live`), whose other words are in events/kinds/agents.py

    {"membership": 5, "step": 1200, "members": [0, 3], "cause": "grow", "pause_s": 0.012}    a membership trains
    {"epoch": 3, "step": 1260, "samples": 1797, "ledger": "64 hex digits"}                   an epoch of data has ended

Each fact is the latest of its kind: at most one of each is published in `interval_s`, and a request for a size at
most once in `REQUEST_S`.  `Watermarks` decides which of them go on the log.  Facts that the rate held
back are published when the container has ended, before its end is reported, except requests, which then have no
purpose.  No epochs are left out: a fact names all epochs that ended since the last one, those with the same ledger as
one run.

The file is the app's, and may hold anything: lines that are not of this form are skipped, half-written ones wait for
their end, lines longer than `LONGEST_LINE` are left out.  One look reads at most `LONGEST_READ` bytes.  If the unread
part of a file exceeds `MOST_BEHIND` (the app writes faster, or made a hole of gigabytes), only its end is read.

The id of each fact holds the end of its line, in bytes from the start of the file.  So a restarted agent knows from
the log which lines were published, and continues after them: nothing is reported twice, and lines written during an
outage of the log are not lost.

*Lines.*  Apps write them by any means, so numbers may be in strings, and the non-finite losses that Python's `json`
writes (`NaN`, `Infinity`) are read although they are not JSON: a training that diverges still works, and has to be
seen to diverge.

*Watermarks.*  Decisions, forecasts and audits need to know when a generation began to work, how far it came, and how
fast it was.  The log therefore has marks: the first report of a generation and of each membership, then further ones
at distances that double up to `WATERMARK_S`, and the last report before the container's end.  All others go to the
stream of progress.

The choice follows from the reports, their times, and the log, so a killed agent makes no mark twice, and the next
agent makes an outstanding mark from the progress file.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

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
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from agents.runtime.interface import Key
    from events.kinds import LossIs


# --- lines ------------------------------------------------------------------------------------------------------------

_LARGEST_STEP = 2**53
_LONGEST_NUMBER = 64
"""Characters of a string that is read as a number."""
_HOLDS_SOMETHING = ("checkpoint", "request_size", "membership", "epoch")
FORM = 'write one JSON object per line, such as {"step": 120, "loss": 0.31}'


def decoded(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None if it holds none."""
    try:
        document: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return document if isinstance(document, dict) else None


def step_of(value: object) -> int | None:
    """Return a step, also from a string or a float that is whole; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _LONGEST_NUMBER:
        value = int(value)
    elif isinstance(value, float | str):
        number = _float(value)
        value = int(number) if number is not None and number.is_integer() else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_STEP:
        return value
    return None


def number_of(value: object) -> float | None:
    """Return a finite number, also from a string; None for anything else."""
    number = _float(value)
    return number if number is not None and math.isfinite(number) else None


def loss_of(value: object) -> tuple[float | None, LossIs]:
    """Return a loss, or which number it is that is not finite."""
    number = _float(value)
    if number is None or math.isfinite(number):
        return number, ""
    if math.isnan(number):
        return None, "nan"
    return None, "inf" if number > 0 else "-inf"


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and len(value) > _LONGEST_NUMBER:
        return None
    try:
        return float(value)
    except (OverflowError, ValueError):
        return None


def fault_of(line: bytes) -> str:
    """Return why a line, or a part of it, can't be used, and a usable form; "" for a usable or an empty line."""
    if not line.strip():
        return ""
    document = decoded(line)
    if document is None:
        return f"this is not a JSON object; {FORM}"
    if "step" in document and step_of(document["step"]) is None and not {"membership", "epoch"} & document.keys():
        return "its step is not a whole number from 0 to 2^53"
    if document.get("checkpoint") is not None and step_of(document["checkpoint"]) is None:
        return "its checkpoint is not a step, which is a whole number from 0 to 2^53"
    for name in ("loss", "samples_per_s", "noise"):
        if document.get(name) is not None and _float(document[name]) is None:
            return f"its {name} is not a number"
    if "step" not in document and not any(name in document for name in _HOLDS_SOMETHING):
        return f"it has no step, no checkpoint and no request_size; {FORM}"
    return ""


# --- the file as it grows ---------------------------------------------------------------------------------------------

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


class Logged(msgspec.Struct):
    """The end of the last line, in bytes, whose fact of each kind the log has."""

    checkpointed: int = 0
    progressed: int = 0
    membership: int = 0
    epoch: int = 0
    request: int = 0
    skipped: int = 0


LOGGED: dict[type[ProgressFact], Literal["checkpointed", "progressed", "membership", "epoch", "request", "skipped"]] = {
    AppCheckpointed: "checkpointed",
    AppProgressed: "progressed",
    MembershipChanged: "membership",
    EpochCompleted: "epoch",
    AppResizeRequested: "request",
    ProgressLinesSkipped: "skipped",
}
"""The field of `Logged` for each kind of fact."""
_LIVE = (MembershipChanged, EpochCompleted)


class ProgressFile:
    """One container's file and how far it was read; `logged` is the part of it that the log has."""

    def __init__(
        self, key: Key, path: Path, interval_s: float, logged: Logged | None = None, *, live: bool = False
    ) -> None:
        """`live` also reads what members of a live app write."""
        self._key = key
        self._path = path
        self._interval_s = interval_s
        self._logged = logged or Logged()
        self._live = live
        kinds = [field for kind, field in LOGGED.items() if live or kind not in _LIVE]
        self._offset = min(getattr(self._logged, field) for field in kinds)
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
        """Number of lines that were published, and the moment."""
        self.saved = self._logged.checkpointed
        """End of the newest line about a checkpoint, also while the rate holds it back."""
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
        request = self._request
        if request is not None and not final and now_s - self._request_at >= max(REQUEST_S, self._interval_s):
            self._request = None
            if (request.containers, request.reason) != self._requested:
                facts.append(request)
                self._request_at, self._requested = now_s, (request.containers, request.reason)
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
        faults, (reported, at) = self._faults, self._faults_said
        if faults is None or faults.lines == reported or not (final or now_s - at >= SKIPPED_S):
            return []
        self._faults_said = faults.lines, now_s
        return [faults] if int(faults.id.rpartition(".")[2]) > self._logged.skipped else []

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
        for end, document in self._newest_first(text[:whole], b'"checkpoint"'):
            saved = step_of(document.get("checkpoint"))
            if saved is not None:
                if begin + end > self._logged.checkpointed:
                    self.saved = max(self.saved, begin + end)
                    self._checkpoint = _placed(AppCheckpointed(app=app, generation=generation, step=saved), begin + end)
                break
        for end, document in self._newest_first(text[:whole], b'"step"'):
            step = (
                step_of(document.get("step"))
                if not self._live or not {"membership", "epoch"} & document.keys()
                else None
            )
            if step is not None:
                if begin + end > self._logged.progressed:
                    loss, loss_is = loss_of(document.get("loss"))
                    self._progress = _placed(
                        AppProgressed(
                            app=app,
                            generation=generation,
                            step=step,
                            loss=loss,
                            loss_is=loss_is,
                            samples_per_s=number_of(document.get("samples_per_s")),
                            noise=number_of(document.get("noise")),
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
        example = clipped(
            "".join(character if character.isprintable() else "\ufffd" for character in text), LONGEST_EXAMPLE
        )
        app, generation, slot = self._key
        self._faults = ProgressLinesSkipped(
            id=id, app=app, generation=generation, slot=slot, lines=1, example=example, reason=fault
        )

    def _take_request(self, lines: bytes, begin: int) -> None:
        """Keep the newest request for a size."""
        app, generation, _ = self._key
        for end, document in self._newest_first(lines, b'"request_size"'):
            size = document.get("request_size", -1)
            size = 0 if size is None else size
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _LARGEST_SIZE:
                continue
            if begin + end > self._logged.request:
                reason = document.get("reason")
                text = clipped(" ".join(reason.split()), _LONGEST_REASON) if size and isinstance(reason, str) else ""
                fact = AppResizeRequested(app=app, generation=generation, containers=size, reason=text)
                self._request = replace(fact, id=f"{AppResizeRequested.__name__}.{begin + end}")
            break

    def _take_live(self, lines: bytes, begin: int) -> None:
        """Keep the newest membership and all epochs of these lines, which begin there in the file."""
        app, generation, _ = self._key
        about = {"app": app, "generation": generation}
        for end, document in self._newest_first(lines, b'"membership"'):
            fact = _live_fact(MembershipChanged, document, about)
            if fact is not None:
                if begin + end > self._logged.membership:
                    self._held[MembershipChanged] = replace(fact, id=f"MembershipChanged.{begin + end}")
                break
        for end, document in reversed(list(self._newest_first(lines, b'"epoch"', MOST_EPOCHS))):
            fact = _live_fact(EpochCompleted, document, about)
            if isinstance(fact, EpochCompleted) and begin + end > self._logged.epoch:
                held = self._held.get(EpochCompleted)
                fact = replace(fact, id=f"EpochCompleted.{begin + end}")
                self._held[EpochCompleted] = _after(held, fact) if isinstance(held, EpochCompleted) else fact

    def _newest_first(self, lines: bytes, word: bytes, tries: int = MOST_TRIES) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the objects of lines that hold the word, newest first, each with the position of its line's end; at most
        `tries`, so that lines which only look like facts cost little."""
        before = len(lines)
        for _ in range(tries):
            position = lines.rfind(word, 0, before)
            if position < 0:
                return
            before, end = lines.rfind(b"\n", 0, position) + 1, lines.find(b"\n", position) + 1
            if end - before > LONGEST_LINE:
                self.skipped += end - before
                continue
            document = decoded(lines[before : end - 1])
            if document is not None:
                yield end, document


def _live_fact(
    kind: type[MembershipChanged] | type[EpochCompleted], words: dict[str, Any], about: dict[str, Any]
) -> MembershipChanged | EpochCompleted | None:
    """Return the fact of a line that a member of a live app wrote; None if it is not of that form.  Unknown words are ignored,
    and words that only the agent may say."""
    fields = {name: words[name] for name in _SAID[kind] if name in words}
    if kind is MembershipChanged and "cause" in words:
        fields["change"] = words["cause"]  # An event's own `cause` names the event on the log that led to it.
    try:
        return msgspec.convert({"kind": kind.__name__, **fields, **about}, kind)
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


# --- watermarks -------------------------------------------------------------------------------------------------------

WATERMARK_S = 60.0
"""Seconds between two marks of an app that works."""
_FIRST_S = 2.0
"""Between the first two: speeds are learned and stalls noticed from the first seconds on."""
_PER_DEADLINE = 4
"""Marks within the time after which an app without a sign of work counts as stalled."""
_NOISE_CHANGES = 1.25
"""A gradient noise that differs by this factor may change the batch size, so it is a mark."""


class Watermarks:
    """The marks of one container."""

    def __init__(self, *, stalls_s: float | None = None, marked: bool = False) -> None:
        """`stalls_s`: after how many seconds without a mark the app counts as stalled.  `marked`: whether the log has one of
        this container already, from an agent that ran before."""
        self._longest = min(WATERMARK_S, stalls_s / _PER_DEADLINE) if stalls_s else WATERMARK_S
        self._gap = self._longest if marked else min(_FIRST_S, self._longest)
        self._at = -math.inf
        self._step = -1
        self._noise: float | None = None
        self._owed: AppProgressed | None = None
        """The newest report, while the log does not have it."""

    def chosen(
        self, facts: Sequence[ProgressFact], now: float, *, final: bool = False
    ) -> list[tuple[ProgressFact, bool]]:
        """Return the facts to publish now, in order, each with whether it goes on the log.  `now` is monotonic seconds;
        `final` says that nothing follows."""
        marked: list[tuple[ProgressFact, bool]] = []
        for index, fact in enumerate(facts):
            if isinstance(fact, AppProgressed):
                last = final and not any(isinstance(later, AppProgressed) for later in facts[index + 1 :])
                on_log = last or self._is_mark(fact, now)
                if on_log:
                    self._mark(fact, now)
                else:
                    self._owed = fact
                marked.append((fact, on_log))
                continue
            if isinstance(fact, AppCheckpointed) and self._owed is not None and self._owed.step < fact.step:
                self._owed = None  # The log has a later step by now.
            if isinstance(fact, MembershipChanged):
                self._gap, self._at, self._owed = min(_FIRST_S, self._longest), -math.inf, None
            marked.append((fact, True))
        if self._owed is not None and (final or now - self._at >= self._gap):
            marked.append((self._owed, True))  # It has not reported since: the log has to have when it last did.
            self._mark(self._owed, now)
        return marked

    def _is_mark(self, fact: AppProgressed, now: float) -> bool:
        before, noise = self._noise, fact.noise
        if noise is not None and (before is None or not before / _NOISE_CHANGES <= noise <= before * _NOISE_CHANGES):
            return True
        return now - self._at >= self._gap or fact.step < self._step

    def _mark(self, fact: AppProgressed, now: float) -> None:
        if self._at > -math.inf:
            self._gap = min(2 * self._gap, self._longest)
        self._at, self._step, self._owed = now, fact.step, None
        self._noise = fact.noise if fact.noise is not None else self._noise
