"""When the output of a process-runtime container was written: a small index in the file `times` beside its `log`.

Programs write to the log themselves, so no process sees each line as it is written. The supervisor checks the log's
size about once a second, and notes each new size with the time. A line has the time of the first note at or after its
end.

The file is pairs of 64-bit integers in the machine's byte order: first the number of line breaks before the log's first byte
and the *position* of that byte, then of each note its time (UTC ns) and the position of the log's end.  Positions count the
bytes that the container has written since its start, so they stay true when the log moves to `log.1`, and the file to
`times.1`.  A reader takes whole pairs with rising positions, so a pair torn by a full disk is left out.  A number of 0 before
a later position means that nobody counted.  The last pair of `times.1` is the number of line breaks before the end of `log.1`,
and -1.

The notes are bounded by `MOST`: beyond it, those closest to their neighbours in relation to their age are left out.  So recent
lines keep the supervisor's second, while the times of old ones are exact to a small part of their age.

Only built-ins are used: supervisors import this outside the virtual environment.
"""

import os
import sys
import time

FILE = "times"
MOST = 4096
"""Notes: 64 KiB."""
_KEPT = MOST * 3 // 4
_BYTES = 16
_BREAKS = -1


class Times:
    """The index of one log, as its supervisor writes it.  Notes that a full disk refuses are written later."""

    def __init__(self) -> None:
        self._begin = 0
        self._breaks: int | None = 0
        """Line breaks before `_begin`; None if they are not known."""
        self._notes: list[tuple[int, int]] = []
        self._saved = 0
        """Notes that the file has."""
        self._whole = True
        """Whether the file has to be written from the start."""

    def note(self, size: int) -> None:
        """Note the size of the log, in bytes, if it has changed."""
        end = self._begin + size
        if end > (self._notes[-1][1] if self._notes else self._begin):
            self._notes.append((time.time_ns(), end))
            if len(self._notes) > MOST:
                self._notes, self._whole = thinned(self._notes), True
        if self._whole or self._saved < len(self._notes):
            try:
                self._save()
            except OSError:
                return  # a full disk, or no folder any more: neither may end the watch

    def moved(self, size: int, breaks: "int | None", all_breaks: "int | None", *, kept: bool) -> None:
        """Begin again, since the log was emptied at this size.  `breaks`: line breaks in the log up to the last note;
        `all_breaks`: up to this size.  `kept`: the part up to the last note is now log.1."""
        if kept:
            try:
                if self._breaks is not None and breaks is not None:
                    with open(FILE, "ab") as file:
                        file.write(_packed([(self._breaks + breaks, _BREAKS)]))
                os.rename(FILE, FILE + ".1")
            except OSError:
                kept = False
        self._begin += size
        self._breaks = None if self._breaks is None or all_breaks is None else self._breaks + all_breaks
        self._notes, self._whole = [], True
        self.note(0)

    def _save(self) -> None:
        if self._whole:
            with open(FILE + ".new", "wb") as file:
                file.write(_packed([(self._breaks or 0, self._begin), *self._notes]))
            os.rename(FILE + ".new", FILE)
        else:
            with open(FILE, "rb+") as file:
                file.seek(_BYTES * (1 + self._saved))  # a torn pair there is overwritten
                file.write(_packed(self._notes[self._saved :]))
        self._saved, self._whole = len(self._notes), False


def thinned(notes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return at most three quarters of `MOST` notes, without those whose neighbours are closest in relation to their age."""
    now, part = notes[-1][0], 1 / MOST
    while len(notes) > _KEPT:
        kept = notes[:1]
        for at in range(1, len(notes) - 1):
            following = notes[at + 1][0]
            if following - kept[-1][0] > part * abs(now - following):
                kept.append(notes[at])
        notes, part = [*kept, notes[-1]], 2 * part
    return notes


def _packed(pairs: list[tuple[int, int]]) -> bytes:
    return b"".join(number.to_bytes(8, sys.byteorder, signed=True) for pair in pairs for number in pair)


def breaks_before(data: bytes) -> "int | None":
    """Return the line breaks that the container wrote before the log's first byte; None if they are not known."""
    breaks, begin = memoryview(data[:_BYTES]).cast("q").tolist()
    return breaks if breaks > 0 or begin == 0 else None


def breaks_up_to_end(data: bytes) -> "int | None":
    """Return the line breaks that the container wrote before the end of log.1, by times.1; None if they are not known."""
    numbers = memoryview(data[: len(data) // _BYTES * _BYTES]).cast("q").tolist()
    return numbers[-2] if numbers and numbers[-1] == _BREAKS else None


def read(data: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Return the position of the log's first byte, and the notes in the file.  Raises ValueError if there is not
    even the first pair."""
    numbers = memoryview(data[: len(data) // _BYTES * _BYTES]).cast("q").tolist()
    if not numbers:
        raise ValueError("an index of times without a beginning")
    begin = last = numbers[1]
    notes = []
    for at in range(2, len(numbers), 2):
        if numbers[at + 1] > last:
            last = numbers[at + 1]
            notes.append((numbers[at], last))
    return begin, notes
