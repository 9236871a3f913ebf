"""Sweeps on a cluster: their apps (`events.spec.sweeps`) are submitted, found, limited and cancelled together.

The same document makes the same sweep, and each app says which of its apps it is.  So the same command, run again after an
interruption or on another machine, submits the missing apps.  Apps under way meanwhile are not submitted twice: a
submission's id follows from the user, the document and the app's number.  The first app is answered before the others are
sent, because an error in one of them is usually an error in all.

How many apps run at once is an edit of one of its apps, which counts for all of them.  The end of a sweep cancels all of
its apps, so that none starts in the place of one that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import secrets
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm.client import steering
from dorm.client.errors import NoAnswer, NotFound, Refused
from dorm.core.admission import app_id
from dorm.core.app import name_key
from dorm.core.gates import limit_of
from dorm.core.query.sweeps import sweeps
from events.identities import tenant_in
from events.kinds import AppCancelRequested, AppRejected, AppSubmitted, Round
from events.spec.variables import check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dorm.client.client import Client
    from dorm.core.state import App, State
    from events.kinds import Event
    from events.spec import CheckedSpec
    from events.spec.sweeps import Sweep


# --- which sweep ------------------------------------------------------------------------------------------------------


def find_sweep(state: State, name: str, user: str = "") -> list[App]:
    """Return the apps of a sweep, of several of one name those of this user's tenant; `TENANT//NAME` names another's.  Raises
    NotFound, with similar names."""
    known = sweeps(state)
    tenant = state.known.tenant_of(user) if state.known is not None else user
    own = known.get((tenant, name))
    if own is not None:
        return own
    named = {key: apps for key, apps in known.items() if name in (key[1], f"{key[0]}//{key[1]}")}
    if len(named) == 1:
        return next(iter(named.values()))
    if named:
        whose = " or ".join(f"{tenant}//{name}" for tenant, _ in sorted(named)[:5])
        raise NotFound(f"{len(named)} users have a sweep {name!r}; name one as {whose}", code="sweep.ambiguous")
    near = difflib.get_close_matches(name, sorted({key[1] for key in known}), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `dorm sweep list --all` lists them"
    raise NotFound(f"there is no sweep {name!r}{hint}", code="sweep.not_found")


def is_sweep(state: State, name: str, user: str = "") -> bool:
    """Return whether a name is a sweep's and no app's."""
    tenant = state.known.tenant_of(user) if state.known is not None else ""
    if state.find_app(name, tenant) is not None:
        return False
    return any(name in (key[1], f"{key[0]}//{key[1]}") for key in sweeps(state))


def free_name(state: State, user: str, wanted: str, run_of: Callable[[str], str]) -> str:
    """Return the name for a sweep whose user gave it none: the name of the same sweep if it has not ended, else the
    name with the first number that no sweep or app uses.  `run_of` returns the digest of the sweep under a name."""
    tenant = state.known.tenant_of(user) if state.known is not None else user
    known = {name: apps for (owner, name), apps in sweeps(state).items() if owner == tenant}
    taken = {app.name for app in state.apps.values() if app.tenant == tenant}
    for number in count(1):
        name = wanted if number == 1 else f"{wanted}-{number}"
        apps = known.get(name)
        if apps is not None and _still_runs(apps, run_of(name)):
            return name
        if apps is None and name not in taken:
            return name
    raise AssertionError("numbers do not end")


def _still_runs(apps: list[App], run: str) -> bool:
    group = apps[0].spec.group
    return group is not None and group.run == run and (len(apps) < group.count or not all(app.ended for app in apps))


# --- submitting -------------------------------------------------------------------------------------------------------

_AT_ONCE = 32
"""Submissions that are under way at once."""
_ANSWER_S = 30.0
"""Seconds without any answer after which the submission is given up."""
_MOST_TRIES = 8
"""Ids of one app's submission that follow from the document; the next one is random."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a submission."""

    new: int
    """Apps that were submitted now."""
    before: int
    """Apps that were there already."""


async def submit(
    client: Client, sweep: Sweep, *, answered: Callable[[int], None] = lambda _: None, answer_s: float = _ANSWER_S
) -> Outcome:
    """Submit the missing apps of a sweep, and wait for the answers; call `answered` with how many apps are there so
    far.

    Raises SpecError before anything is sent; Refused if other apps have names of this sweep, if it was cancelled or is over,
    and if the master refuses one of its apps; NoAnswer; Unsettled, and the log's errors.  After the last four, the same call
    continues.
    """
    first = await client.submission_id(f"{client.user}.{sweep.digest}.0")
    state = await client.state()
    tenant = tenant_in(first) or client.user
    there = _there(state, sweep, tenant)
    _check_names(state, sweep, tenant, first)
    for spec in sweep.specs:
        check_names(spec)
    missing = [spec for spec in sweep.specs if spec.group is not None and spec.group.index not in there]
    _check_unfinished(sweep, list(there.values()), missing)
    under_way = _Submission(client, sweep, there.values(), state, answered, answer_s)
    await under_way.run(missing[:1])
    await under_way.run(missing[1:])
    return Outcome(new=len(missing), before=len(there))


def _there(state: State, sweep: Sweep, tenant: str) -> dict[int, App]:
    """Return the apps of this very sweep by their numbers."""
    return {
        app.spec.group.index: app
        for app in state.apps.values()
        if app.spec.group is not None
        and (app.tenant, app.spec.group.name, app.spec.group.run) == (tenant, sweep.name, sweep.digest)
    }


def _check_names(state: State, sweep: Sweep, tenant: str, submission: str) -> None:
    """Refuse a sweep if other live apps have its name, or names of its apps.  Raises Refused."""
    taken = [
        app
        for app_id in state.names.values()
        if (group := (app := state.apps[app_id]).spec.group) is not None
        and (app.tenant, group.name) == (tenant, sweep.name)
        and group.run != sweep.digest
    ]
    if taken:
        text = f"another sweep {sweep.name} is under way ({len(taken)} apps have not ended); `dorm sweep cancel {sweep.name}`"
        raise Refused(f"{text} ends it, or give this one another --name", code="sweep.name.taken")
    for name in (sweep.name, *(spec.name for spec in sweep.specs)):
        holder = state.names.get(name_key(name, submission))
        group = state.apps[holder].spec.group if holder is not None else None
        if holder is not None and (group is None or group.run != sweep.digest):
            text = f"an app named {name} is there already ({holder}); cancel it, or give the sweep another --name"
            raise Refused(text, code="sweep.name.taken")


def _check_unfinished(sweep: Sweep, there: Sequence[App], missing: Sequence[CheckedSpec]) -> None:
    """Refuse to continue a sweep that was cancelled, or that is over.  Raises Refused."""
    again = "give it another --name to run it again"
    if any(app.cancel_requested and not app.ended for app in there) and all(
        app.cancel_requested or app.ended for app in there
    ):
        raise Refused(f"the sweep {sweep.name} is being cancelled; {again}", code="sweep.cancelled")
    if missing and there and all(app.ended == "cancelled" for app in there):
        text = f"the sweep {sweep.name} was cancelled before all of it was submitted; {again}"
        raise Refused(text, code="sweep.cancelled")
    if not missing and all(app.ended for app in there):
        ends: dict[str, int] = {}
        for app in there:
            ends[app.ended] = ends.get(app.ended, 0) + 1
        counts = ", ".join(f"{count} {how}" for how, count in sorted(ends.items()))
        raise Refused(f"the sweep {sweep.name} has run already ({counts}); {again}", code="sweep.over")


class _Submission:
    """Submissions under way."""

    def __init__(
        self,
        client: Client,
        sweep: Sweep,
        there: Iterable[App],
        state: State,
        answered: Callable[[int], None],
        answer_s: float,
    ) -> None:
        self._client = client
        self._digest = sweep.digest
        self._begin = state.seq
        self._waiting = set(state.submissions)
        """Apps without an answer at the start."""
        self._answered = answered
        self._answer_s = answer_s
        self._ours = {app.id for app in there}
        self._done = len(self._ours)
        self._open: dict[str, str] = {}
        """Apps by the submissions that have no answer yet."""
        self._unsent = 0
        self._settled = asyncio.Event()
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def run(self, specs: Sequence[CheckedSpec]) -> None:
        """Send these, and return once all are answered."""
        if not specs:
            return
        self._unsent = len(specs)
        self._settled.clear()
        sending = asyncio.create_task(self._send(specs))
        tasks = [sending, asyncio.create_task(self._follow_answers()), asyncio.create_task(self._settled.wait())]
        try:
            while not self._settled.is_set():
                ended, _ = await asyncio.wait(
                    [task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED
                )
                for task in ended:
                    task.result()
            await sending
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _settle(self) -> None:
        if not self._unsent and not self._open:
            self._settled.set()

    # --- sending --------------------------------------------------------------------------------------------------------

    async def _send(self, specs: Sequence[CheckedSpec]) -> None:
        """Send all, a bounded number at once.  Raises the error of the first one that fails."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            for spec in specs:
                await self._free.acquire()
                tasks.add(asyncio.create_task(self._send_one(spec)))
                for done in [task for task in tasks if task.done()]:
                    tasks.discard(done)
                    done.result()
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_one(self, spec: CheckedSpec) -> None:
        """Submit one app.  A submission that was answered before, and has no app now, was refused or is long over: another id
        asks again."""
        try:
            owned = spec if spec.user != "anonymous" else msgspec.structs.replace(spec, user=self._client.user)
            document = msgspec.to_builtins(owned)
            index = spec.group.index if spec.group is not None else 0
            for number in range(_MOST_TRIES + 1):
                more = "" if not number else f".{number}" if number < _MOST_TRIES else f".{secrets.token_hex(8)}"
                id = await self._client.submission_id(f"{self._client.user}.{self._digest}.{index}{more}")
                app = app_id(spec.name, id)
                self._open[id] = app
                self._ours.add(app)
                if await self._client.ask(AppSubmitted, id=id, spec=document) > self._begin or id in self._waiting:
                    break
                self._open.pop(id, None)
            self._unsent -= 1
            self._settle()
        finally:
            self._free.release()

    # --- hearing --------------------------------------------------------------------------------------------------------

    async def _follow_answers(self) -> None:
        """Follow the log for answers.  Raises Refused, NoAnswer."""
        loop = asyncio.get_running_loop()
        try:
            async with (
                asyncio.timeout(self._answer_s) as limit,
                contextlib.aclosing(self._client.watch()) as seen,
            ):
                async for state, events in seen:
                    if self._note(state, events):
                        limit.reschedule(loop.time() + self._answer_s)
        except TimeoutError:
            raise NoAnswer(
                f"{self._unsent + len(self._open)} apps have no answer yet: no master leads (`dorm masters`), or it is busy; "
                "the same command continues"
            ) from None

    def _note(self, state: State, events: Sequence[Event]) -> bool:
        """Note answers; return whether there were any.  Raises Refused."""
        for event in events:
            if isinstance(event, AppCancelRequested) and event.app in self._ours:
                text = "the sweep is being cancelled, so nothing more of it is submitted"
                raise Refused(text, code="sweep.cancelled")
            for fact in event.events if isinstance(event, Round) else ():
                if isinstance(fact, AppRejected) and fact.refused == "submission" and fact.submission in self._open:
                    raise Refused(fact.reason, code=fact.code)
        done = [submission for submission, app in self._open.items() if app in state.apps]
        for submission in done:
            del self._open[submission]
        if done:
            self._done += len(done)
            self._answered(self._done)
            self._settle()
        return bool(done)


# --- cancelling -------------------------------------------------------------------------------------------------------


class Cancelled(NamedTuple):
    """The requested cancellations."""

    apps: tuple[str, ...]
    """The ids of the apps that had not ended."""
    position: int
    """The last sequence of a request."""


async def cancel(client: Client, name: str, reason: str = "") -> Cancelled:
    """Cancel all apps of a sweep that have not ended, those that wait first.  Raises NotFound; Refused, also if all of it has
    ended; Unsettled, and the log's errors."""

    def live(state: State) -> list[tuple[str, bool]]:
        return [(app.id, bool(app.generation)) for app in find_sweep(state, name, client.user) if not app.ended]

    members = await client.look(live)
    if not members:
        raise Refused(f"all apps of the sweep {name} have ended already", code="app.ended")
    position = 0
    for started in (False, True):
        # The last ones first: a command that still submits the sweep continues after them.
        ids = [app for app, has_started in reversed(members) if has_started is started]
        position = max(position, await _cancel_all(client, ids, reason))
    return Cancelled(tuple(app for app, _ in members), position)


async def _cancel_all(client: Client, apps: Sequence[str], reason: str) -> int:
    """Publish the requests; return the last sequence of one, 0 for none."""
    free = asyncio.Semaphore(_AT_ONCE)

    async def ask(app: str) -> int:
        async with free:
            return await client.ask(AppCancelRequested, app=app, reason=reason)

    try:
        async with asyncio.TaskGroup() as tasks:
            requests = [tasks.create_task(ask(app)) for app in apps]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return max((task.result() for task in requests), default=0)


# --- limiting ---------------------------------------------------------------------------------------------------------


async def set_parallel(client: Client, sweep: str, parallel: int) -> int:
    """Let at most `parallel` apps of a sweep run at once, 0 for no limit; return the limit before.  Raises NotFound;
    Refused if no app of it is left to run, or it has this limit already; and as `dorm.client.steering.edit`."""
    apps = find_sweep(await client.state(), sweep, client.user)
    live = [app for app in apps if not app.ended and not app.cancel_requested]
    if not live:
        raise Refused(f"all apps of the sweep {sweep} have ended already, so nothing of it can start", code="app.ended")
    app = live[-1]
    before, spec = limit_of(app), app.owners_spec
    if before == parallel:
        raise Refused(
            f"the sweep {sweep} has this limit already; `dorm sweep show {sweep}` shows it", code="edit.no_change"
        )
    assert spec.group is not None, "it is one of a sweep"
    edited = msgspec.structs.replace(spec, group=msgspec.structs.replace(spec.group, parallel=parallel))
    await steering.edit(client, app.id, edited, made_from=spec)
    return before
