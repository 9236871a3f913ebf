"""Compare desired with seen containers, and return actions.  Pure and level-triggered: the same input gives the same actions.

    wanted, unseen, never reported          launch
    wanted, unseen, reported as started     it was lost: report its exit
    released, unseen, no longer wanted      report its exit: it never started, and its room is waited for
    seen running, not reported              report its start
    seen running, its files say another membership or batch size    announce it
    seen running, not wanted                halt it (checkpoint, SIGTERM, grace, SIGKILL), unless it works on while
                                            its successor is prepared
    seen running, its GPU is gone           stop it; its end is the node's fault, not an answer to a request
    to be released, unseen                  prepare it, once
    created, neither wanted nor to be released    discard it
    seen exited, not reported               report its exit
    seen exited, on the log, kept long      discard it, logs and all

Nothing is launched while a container runs that the log counts as ended: the master counts its room as free and its app
as stopped.  That happens on a node that outlived its lease.

`announced` and `files_of` say what running containers read about their app: the files that `DORM_MEMBERS` and
`DORM_BATCH` name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from agents import engines
from agents.runtime.interface import BATCH_FILE, MEMBERS_FILE, Key, Seen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agents.desired import Desired
    from events.parts import AppPart


# --- what containers read about their app -----------------------------------------------------------------------------


class Announced(NamedTuple):
    """The contents of a container's files; 0 for a file that its app does not have."""

    membership: int = 0
    """Number of the membership that was announced last, of a live app."""
    batch: int = 0
    """Batch size that was decided last, in samples, of an app that accepts several."""


def announced(app: AppPart) -> Announced:
    """Return the contents for the files of the app's containers."""
    return Announced(app.membership if app.live else 0, app.batch_size)


def files_of(app: AppPart) -> dict[str, bytes]:
    """Return these files by name."""
    files = {}
    if app.live:
        files[MEMBERS_FILE] = engines.announcement(
            app.generation, app.membership, app.spec.deadlines.live_s, app.members, app.founders
        )
    if app.batch_size:
        files[BATCH_FILE] = b"%d\n" % app.batch_size
    return files


# --- actions ----------------------------------------------------------------------------------------------------------


class Launch(msgspec.Struct, frozen=True):
    key: Key


class Prepare(msgspec.Struct, frozen=True):
    key: Key


class Halt(msgspec.Struct, frozen=True):
    key: Key


class Withdraw(msgspec.Struct, frozen=True):
    key: Key


class ReportStarted(msgspec.Struct, frozen=True):
    seen: Seen

    @property
    def key(self) -> Key:
        return self.seen.key


class Announce(msgspec.Struct, frozen=True):
    key: Key
    news: Announced


class ReportExited(msgspec.Struct, frozen=True):
    key: Key
    seen: Seen | None
    """None if the engine no longer knows it."""


class Discard(msgspec.Struct, frozen=True):
    key: Key


Action = Launch | Prepare | Halt | Withdraw | Announce | ReportStarted | ReportExited | Discard


def reconcile(
    desired: Desired,
    seen: Sequence[Seen],
    now: int,
    written: Mapping[Key, Announced] | None = None,
    prepared: Collection[Key] = (),
    lost: Collection[Key] = (),
) -> list[Action]:
    """Return the actions due now, in order of keys.  `now` is log time (UTC ns): a machine's clock may be off by hours.
    `written` has this process's last announcement to each container; a restarted one has announced nothing, and does so
    again.  `prepared` are the containers that this process has prepared for their release as far as possible; `lost` are
    those whose GPU is gone."""
    wanted, ahead = desired.wanted(), desired.to_prepare()
    listed = {container.key: container for container in seen}
    actions: list[Action] = []
    has_zombie = any(container.state == "running" and _ended(container.key, desired) for container in seen)
    for key in sorted({*wanted, *listed, *desired.started, *desired.announced, *desired.due}):
        action = _for(key, key in wanted, listed.get(key), desired, now)
        if key in ahead and isinstance(action, Discard):
            action = None  # It is created, and starts with its release.
        if isinstance(action, Halt) and desired.works_on(key, now):
            action = None if key in desired.started or key in desired.announced else ReportStarted(listed[key])
        if key in lost and key in wanted and key in listed and listed[key].state == "running":
            action = Withdraw(key)
        if action is None and key in wanted:
            action = _announcement(key, announced(wanted[key]), listed.get(key), (written or {}).get(key, Announced()))
        if action is not None and not (has_zombie and isinstance(action, Launch)):
            actions.append(action)
    actions += [Prepare(key) for key in ahead if key not in prepared]
    return actions


def _ended(key: Key, desired: Desired) -> bool:
    """Return whether, by the log, the container has ended or was never released."""
    return key in desired.exited or key not in desired.due


def _for(key: Key, wanted: bool, seen: Seen | None, desired: Desired, now: int) -> Action | None:
    started, exited = key in desired.started or key in desired.announced, key in desired.exited
    if seen is None:
        if exited:
            return None
        if started:
            return ReportExited(key, None)
        if wanted:
            return Launch(key)
        return ReportExited(key, None) if key in desired.due else None
    if seen.state == "created":
        # A crash came between create and start: launching starts it; if unwanted, it is discarded.
        return (Launch(key) if not exited else None) if wanted else Discard(key)
    if seen.state == "running":
        if not wanted or exited:
            return Halt(key)
        return None if started else ReportStarted(seen)
    if not exited and key in desired.due:
        return ReportExited(key, seen)
    return Discard(key) if _kept_long_enough(key, seen, desired, now) else None


def _announcement(key: Key, news: Announced, seen: Seen | None, written: Announced) -> Announce | None:
    runs = seen is not None and seen.state == "running"
    return Announce(key, news) if runs and news != written else None


def _kept_long_enough(key: Key, seen: Seen, desired: Desired, now: int) -> bool:
    """Return whether an ended container may go: it stays readable for a while, also if its app has gone to other nodes."""
    if key in desired.due:
        return False  # Reported, but not yet on the log: after a crash the engine is read again.
    app = desired.apps.get(key.app)
    # The engine uses this machine's clock, which may have been ahead.
    ended = max(min(seen.exited_at, now), app.ended_at if app is not None else desired.ended.get(key.app, 0))
    return ended > 0 and now - ended > int(desired.retention_of(key.app) * 1e9)
