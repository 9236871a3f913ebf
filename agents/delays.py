"""What this node tries again and again for containers: what of it goes on the log, how often, and when it is given up.

An action that fails is tried again by the next reconciliation (`agents.actions`).  That must be neither silent nor
endless:

    on the log     once the same has lasted `FIRST_S`, so that a blip is no event; again when what is done or its reason
                   changes, at most `MOST` times for a container and with growing pauses; and when it is over
    in the log of  at the first failure, when the reason changes, and at growing intervals
    the process
    tried again    after a pause that grows from `PAUSE_S` to `LONGEST_S`
    given up       a start that fails for as long as `bound_s` allows: its node is at fault, and the app goes elsewhere

What only takes long (a pull that makes progress, a folder that is being fetched, another node that has to act first)
is on the log too, and is never given up here.  Progress in between starts the count of failures again; a change of the
reason does not.

`Repeats` are the lines of the agent's own log that repeat during a fault: each is logged when the fault begins, and
then at growing intervals (`docs/logging.md`).

Pure: times are given, in seconds of any clock.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import msgspec

from agents import reconcile as r
from agents.runtime.interface import Unavailable
from events.errors import code_of
from events.kinds import Doing

if TYPE_CHECKING:
    from agents.runtime.interface import Key
    from events.spec import Deadlines


# --- of containers ----------------------------------------------------------------------------------------------------

FIRST_S: Final = 2.0
PAUSE_S: Final = 1.0
LONGEST_S: Final = 5.0
MOST: Final = 12
"""Events about one container, without the last one, which says that it is over."""
GIVEN_UP_S: Final = 120.0
"""Seconds for which a start may fail, unless the app's own deadline for it is shorter."""
_LONGEST_SILENCE_S: Final = 300.0
_AGAIN_S: Final = 5.0
"""The shortest pause between two events about one container; it doubles with each."""
_WAITS: Final[dict[str, Doing]] = {
    "container.image.pulling": "pull",
    "workdir.fetching": "fetch",
    "checkpoints.not_judged": "read",
}
"""Codes of errors that say that something takes long."""
_UNTRACKED: Final = ("node_lease.expired",)
"""Nothing of this container: the node is cut off, and says so itself."""
_DOING: Final[tuple[tuple[str, Doing], ...]] = (
    ("container.image.", "pull"),
    ("container.supervisor.", "start"),
    ("container.no_start", "start"),
    ("container.unkillable", "stop"),
    ("container.", "create"),
    ("workdir.", "fetch"),
    ("environment.", "prepare"),
    ("secrets.", "prepare"),
    ("checkpoints.", "read"),
)
"""Actions that fail, by the beginning of an error's code."""
_OF_ACTIONS: Final[dict[type, Doing]] = {
    r.Launch: "start",
    r.Prepare: "prepare",
    r.Halt: "stop",
    r.Announce: "tell",
    r.ReportStarted: "report",
    r.ReportExited: "report",
    r.Discard: "remove",
}
_SHORTAGES: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class Trouble(msgspec.Struct, frozen=True):
    """Why an action has to be tried again."""

    doing: Doing
    reason: str
    code: str
    failing: bool = True


class Step(msgspec.Struct, frozen=True):
    """What follows from one failure."""

    pause_s: float
    publish: bool = False
    log: bool = False
    tries: int = 1
    lasts_s: float = 0.0
    given_up: bool = False
    """Whether its bound is over."""


class _Delay(msgspec.Struct):
    trouble: Trouble
    since: float
    failing_since: float
    tries: int = 0
    events: int = 0
    published: Trouble | None = None
    publish_from: float = 0.0
    logged: Trouble | None = None
    log_from: float = 0.0


class Delays:
    """The delays of one node's containers."""

    def __init__(self) -> None:
        self._of: dict[Key, _Delay] = {}

    def failed(
        self, key: Key, trouble: Trouble, now: float, bound_s: float | None = None, *, took_s: float = 0.0
    ) -> Step:
        """Note a failed try, which took so long; `bound_s` is how long it may fail, None for without end."""
        known, began = self._of.get(key), now - took_s
        if known is None:
            known = self._of[key] = _Delay(trouble, began, began, publish_from=began + FIRST_S)
        if trouble.failing != known.trouble.failing:
            known.since = known.failing_since = began
        known.trouble, known.tries = trouble, known.tries + 1
        lasts_s = now - known.since
        pause_s = min(LONGEST_S, max(PAUSE_S, lasts_s / 10))
        left_s = bound_s - (now - known.failing_since) if trouble.failing and bound_s is not None else pause_s
        if 0 < left_s < pause_s:  # It is given up in time for the app's own deadline.
            pause_s = max(0.1, left_s)
        publish, log = self._publishes(known, now), self._logs(known, now)
        return Step(pause_s, publish, log, known.tries, lasts_s, given_up=left_s <= 0)

    def _publishes(self, known: _Delay, now: float) -> bool:
        if known.published == known.trouble or known.events >= MOST or now < known.publish_from:
            return False
        known.published, known.events = known.trouble, known.events + 1
        known.publish_from = now + _AGAIN_S * 2 ** (known.events - 1)
        return True

    def _logs(self, known: _Delay, now: float) -> bool:
        changed = known.logged is None or (known.logged.doing, known.logged.code) != (
            known.trouble.doing,
            known.trouble.code,
        )
        if not changed and now < known.log_from:
            return False
        known.logged = known.trouble
        known.log_from = now + min(_LONGEST_SILENCE_S, max(_AGAIN_S, now - known.since))
        return True

    def over(self, key: Key) -> tuple[Trouble | None, int]:
        """Drop what is known of a container, since it worked or is no longer tried.  Return what is on the log of it, None if
        nothing is, and how often it was tried in vain."""
        known = self._of.pop(key, None)
        return (known.published, known.tries) if known is not None else (None, 0)

    @property
    def keys(self) -> set[Key]:
        return set(self._of)

    def failing(self, key: Key, now: float) -> tuple[Trouble, float] | None:
        """Return what fails for a container now, and for how long; None if nothing does."""
        known = self._of.get(key)
        if known is None or not known.trouble.failing:
            return None
        return known.trouble, now - known.failing_since

    def now(self, now: float) -> list[tuple[Key, Trouble, float]]:
        """Return all that is on the log and not over, by key: what is done, and for how long (s)."""
        return [
            (key, delay.published, now - delay.since)
            for key, delay in sorted(self._of.items())
            if delay.published is not None
        ]


def bound_of(deadlines: Deadlines, most_s: float = GIVEN_UP_S) -> float:
    """Return for how long (s) a node may fail to start a container of an app."""
    return most_s if deadlines.start_s is None else min(deadlines.start_s, most_s)


def trouble_of(action: r.Action, error: Exception) -> Trouble | None:
    """Return what an error means for a container; None if it says nothing about it."""
    code = code_of(error)
    if code in _UNTRACKED:
        return None
    if code in _WAITS:
        # What these say changes from call to call, and what is done says it all.
        return Trouble(_WAITS[code], "" if code != "checkpoints.not_judged" else str(error), code, failing=False)
    doing = _OF_ACTIONS[type(action)]
    text = str(error)
    if isinstance(error, Unavailable) and error.doing:
        doing, text = error.doing, error.said
    elif isinstance(action, r.Launch | r.Prepare):
        doing = next((kind for beginning, kind in _DOING if code.startswith(beginning)), doing)
    if isinstance(error, OSError):
        text = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        doing = "create" if error.errno in _SHORTAGES and doing == "start" else doing
    return Trouble(doing, " ".join(text.split()), code)


# --- of the own log ---------------------------------------------------------------------------------------------------

_FIRST_S: Final = 5.0
_LONGEST_S: Final = 300.0
_MOST: Final = 256
"""Different lines that are remembered; the one that was logged first is forgotten first."""


class Repeats:
    """The lines of one part of an agent."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[float, float, str]] = {}
        """Moment from which a line may be logged again, the pause that this took, and the error's code, by line."""

    def due(self, line: str, now: float, about: str = "") -> bool:
        """Return whether to log a line now: at once if it is `about` something else than before.  One that was not asked about
        for twice as long as its pause begins again."""
        again, pause, before = self._of.get(line, (now, 0.0, about))
        if now < again and about == before:
            return False
        if pause and (now > again + pause or about != before):
            pause = 0.0
        pause = min(_LONGEST_S, max(_FIRST_S, 2 * pause))
        self._of.pop(line, None)
        self._of[line] = now + pause, pause, about
        if len(self._of) > _MOST:
            del self._of[next(iter(self._of))]
        return True

    def over(self, line: str) -> bool:
        """Forget a line; return whether it was logged."""
        return self._of.pop(line, None) is not None
