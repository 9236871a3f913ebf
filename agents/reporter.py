"""An agent's reports about its containers: facts made from the engine's list, published through the outbox.

The id of each fact derives from its content, never from a clock or a counter: an agent that was killed publishes the
same again, and the log stores it once.

The report of a failure has the last output of the container, so that it says more than an exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import structlog

from agents.contract import PORT_TAKEN
from agents.delays import Repeats
from agents.outputs import checkpoints
from agents.progress import ProgressFact, ProgressFile, Watermarks
from agents.runtime.interface import PROGRESS_FILE, Key, RuntimeFault, Seen, Unavailable, key_name
from agents.runtime.long_work import LongWork
from events.errors import code_of
from events.kinds import (
    CUT_OFF,
    AppCheckpointed,
    AppProgressed,
    ContainerDelayed,
    ContainerExited,
    ContainersPrepared,
    ContainerStarted,
    ExitReason,
)
from events.limits import clipped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agents.config import NodeConfig
    from agents.delays import Trouble
    from agents.desired import Desired
    from agents.ledger import Ledger
    from agents.machine_identity import Identity
    from agents.node_status import Usage
    from agents.outbox import Outbox, ProgressFeed
    from agents.runtime.interface import Key, Runtime
    from events.kinds import Doubt


# --- the last output --------------------------------------------------------------------------------------------------

_LINES = 3
_LONGEST = 400
"""Characters.  They go on the log with each failure, so this bounds the records of a crash loop."""
_SEARCHED = 200
"""Lines in which the error is looked for: launchers and C++ print dozens after it."""
_READ = 64 * 1024
_LIMIT_S = 2.0

_ERROR = re.compile(
    r"^(?:\[[^\]]{1,40}\]:? ?)*"  # [rank1]: as PyTorch has it, [1,0]<stderr>: as Open MPI has it
    r"(?:terminate called after throwing .*|what\(\): +\S.*"
    r"|(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Behind)(?:: .*|$))"
)
"""A line that names an error, as the output of Python and C++ ends with one."""
_OF_A_LAUNCHER = re.compile(r"(?:CalledProcessError|ChildFailedError|ProcessRaisedException|SystemExit)\b")
"""Errors of programs that started another one: they say less than what it printed itself."""
_PEER_LOST = re.compile(
    r"connection (?:was )?(?:closed|reset|aborted|refused)"  # gloo, sockets
    r"|connect(?:ion)? .{0,80}(?:refused|timed out)|timed out waiting|broken pipe|socket closed"
    r"|(?:peer|remote) (?:closed|hung up)"
    r"|remote process exited|ncclRemoteError|ncclSystemError|NCCL communicator was aborted|watchdog (?:caught|timeout)"
    r"|failed to recv, got 0 bytes|TCPStore|RendezvousConnectionError|RendezvousTimeoutError|DistNetworkError|DistStoreError"
    r"|lost (?:connection|communication) (?:to|with)|\bLeftBehind\b|EOFError|UnavailableError"
    r"|container of rank \d+ is gone|first container is gone|peer .{0,40}(?:is gone|is dead|died|exited)"
    r"|(?:BrokenPipe|Connection(?:Reset|Aborted|Refused))Error",
    re.IGNORECASE,
)
"""Output of programs that lose the connection to another one, in their own words and in those of gloo, NCCL, MPI, TensorFlow
and `dorm.elastic`.  A program that fails for another reason and prints one of these only fails a little later."""


class LastWords(NamedTuple):
    """What a container said before it ended."""

    text: str = ""
    """The message in one line; "" if there was none."""
    peer_lost: bool = False
    """Whether it says that it lost the connection to another container."""


async def last_words(runtime: Runtime, key: Key) -> LastWords:
    """Return what a container said last; nothing if that cannot be read in time."""
    output = b""
    with contextlib.suppress(KeyError, OSError, TimeoutError, RuntimeFault):
        async with (
            asyncio.timeout(_LIMIT_S),
            contextlib.aclosing(runtime.logs(key, follow=False, tail=_SEARCHED)) as pieces,
        ):
            async for piece in pieces:
                output = (output + piece)[-_READ:]
    return understood(output)


def understood(output: bytes) -> LastWords:
    """Return what the end of an output says: its last lines, or the last error before them if they name none."""
    lines = _lines(output)[-_SEARCHED:]
    error = _error_in(lines)
    text = _in_one_line(lines[-_LINES:])
    if error and not any(_error(line) for line in lines[-_LINES:]):
        text = error if len(error) <= _LONGEST else error[: _LONGEST - 1] + "…"
    return LastWords(text, bool(_PEER_LOST.search(error or text)))


def _lines(output: bytes) -> list[str]:
    """Return the lines that mean something.  Those that only point at a place in the line above, as Python's tracebacks have
    them, do not."""
    lines = [" ".join(line.split()) for line in output.decode(errors="replace").splitlines()]
    return [line for line in lines if line.strip("^~ ")]


def _error(line: str) -> bool:
    return bool(_ERROR.match(line)) and not _OF_A_LAUNCHER.search(line.partition(": ")[0])


def _error_in(lines: list[str]) -> str:
    """Return the last line that names an error, "" for none."""
    return next((line for line in reversed(lines) if _error(line)), "")


def _in_one_line(lines: list[str]) -> str:
    """Return lines as one of at most `_LONGEST` characters, which keeps the last ones."""
    text = " / ".join(lines)
    return text if len(text) <= _LONGEST else "…" + text[1 - _LONGEST :]


# --- reports ----------------------------------------------------------------------------------------------------------

T = TypeVar("T")

_KILLED = 137
MOST_READERS = 4
"""Threads that read progress files concurrently."""
_READ_S = 10.0
_LOOK_S = 5.0
"""Seconds that a look at an app's checkpoints may take; it must not delay reports for long."""
_PROGRESS_POLL_S = 0.2
_HURRY_S = 30.0
"""Seconds after a container's start, and after the announcement of a membership, in which its progress file is looked at every
`_PROGRESS_POLL_S`: reports in this time end a change.  At other times two looks for each fact of a kind that may be
published suffice."""
_log = structlog.get_logger(__name__)


class Watched:
    """One container's progress file and its current read."""

    def __init__(self, file: ProgressFile, marks: Watermarks) -> None:
        self.file = file
        self.marks = marks
        self.lock = asyncio.Lock()
        self.reading: asyncio.Task[list[ProgressFact]] | None = None
        self.believed = file.saved
        """Up to which line about a checkpoint the app's files are noted (`agents.outputs.checkpoints`)."""
        self.noted = False
        """Whether skipped bytes were reported."""
        self._membership = 0
        self._since = -math.inf
        """Moment at which the container was first looked at, or that membership was announced to it (the loop's seconds)."""

    def note(self, membership: int, now: float) -> None:
        """Note the membership that is announced to the container; of an app that is not live 0."""
        if self._since == -math.inf or membership != self._membership:
            self._membership, self._since = membership, now

    def is_new(self, membership: int) -> bool:
        """Return whether that membership was announced since the last look."""
        return membership != self._membership

    def hurries(self, now: float) -> bool:
        """Return whether its present report may end a change."""
        return now - self._since < _HURRY_S

    async def result(self) -> list[ProgressFact]:
        """Return the result of the read under way, which continues if this call is cancelled."""
        assert self.reading is not None
        facts = await asyncio.shield(self.reading)
        self.reading = None
        return facts


class Reporter:
    """The reporter of one node; it notes its reports in `desired` before the log has them."""

    def __init__(
        self,
        config: NodeConfig,
        desired: Desired,
        runtime: Runtime,
        ledger: Ledger,
        outbox: Outbox,
        clock: Callable[[], int],
        identity: Identity,
        shared: Callable[[], Awaitable[bool]],
        feed: ProgressFeed,
        usage: Usage,
    ) -> None:
        """`shared` returns whether checkpoints are certainly in the folder that all nodes share. `feed` receives
        progress that does not go on the log."""
        self._shared = shared
        self._feed = feed
        self._usage = usage
        self._config = config
        self._desired = desired
        self._runtime = runtime
        self._ledger = ledger
        self._outbox = outbox
        self._clock = clock
        self._identity = identity
        self._asked: set[Key] = set()
        self._lost: dict[Key, str] = {}
        """Containers that this process stopped, or saw fail, because their GPU is gone, with that reason."""
        self._lived: set[Key] = set()
        """Containers that this process has seen running."""
        self._delays = 0
        self._repeats = Repeats()
        self.origins: dict[str, str] = {}
        """Digests of the checkpoints that apps were given, by app."""
        self.doubts: dict[Key, Doubt] = {}
        """Doubts about checkpoints before these containers started."""
        self._looking = LongWork("looks at checkpoints", of_one=1)
        self._progress: dict[Key, Watched] = {}
        self._readers = asyncio.Semaphore(MOST_READERS)
        self._running: list[Key] = []
        """The containers that ran when they were listed last."""
        self._some_run = asyncio.Event()
        self._some_change = asyncio.Event()
        """Event that one of them has not been looked at since it was started, or since a membership was announced to it."""

    def look(self, seen: list[Seen]) -> None:
        """Note the listed containers before they are acted on."""
        self._running = [container.key for container in seen if container.state == "running"]
        self._lived.update(self._running)
        if self._running:
            self._some_run.set()
        else:
            self._some_run.clear()
        if any(self._changes(key) for key in self._running):
            self._some_change.set()

    def _changes(self, key: Key) -> bool:
        watched = self._progress.get(key)
        return watched is None or watched.is_new(self._membership(key))

    def _membership(self, key: Key) -> int:
        """Return the membership that is announced to a container, 0 for one of an app that is not live."""
        app = self._desired.apps.get(key.app)
        return app.membership if app is not None else 0

    async def asking(self, key: Key) -> None:
        """Note that the container is about to be asked to stop.  A full disk, which can't take the note, must not keep an app
        from being stopped: this process remembers it anyway, and the next one takes the safe side (`_was_asked`)."""
        self._asked.add(key)
        try:
            await asyncio.to_thread(self._ledger.note_asked, key)
        except OSError as error:
            _log.error("a note could not be written", node=self._config.name, key=key, reason=str(error))

    async def lost_device(self, key: Key, why: str) -> None:
        """Note that its GPU is gone, and that its end follows from that."""
        if key in self._lost:
            return
        self._lost[key] = why
        _log.error("a container's GPU is gone", node=self._config.name, key=key, reason=why)
        try:
            await asyncio.to_thread(self._ledger.note_lost_device, key, why)
        except OSError as error:
            _log.error("a note could not be written", node=self._config.name, key=key, reason=str(error))

    async def killed(self, key: Key) -> None:
        """Note that it did not end within its grace time."""
        try:
            await asyncio.to_thread(self._ledger.note_killed, key)
        except OSError as error:
            _log.error("a note could not be written", node=self._config.name, key=key, reason=str(error))

    async def started(self, seen: Seen, environment_s: float = 0.0) -> None:
        self._desired.announced.add(seen.key)
        self._lived.add(seen.key)
        app, generation, slot = seen.key
        await self._outbox.put(
            ContainerStarted(
                id=f"{self._config.name}.{key_name(seen.key)}.started",
                at=self._clock(),
                by=self._config.name,
                app=app,
                generation=generation,
                slot=slot,
                node=self._config.name,
                started_at=seen.started_at,
                identity=self._identity.value,
                environment_s=environment_s,
                origin_digest=self.origins.get(app, ""),
                doubt=self.doubts.get(seen.key),
            )
        )

    async def prepared(self, key: Key, created: int, reason: str) -> None:
        """Report that all was done here that can be before the release of the key's generation."""
        app, generation, _ = key
        await self._outbox.put(
            ContainersPrepared(
                id=f"{self._config.name}.{app}-{generation}.prepared",
                at=self._clock(),
                by=self._config.name,
                app=app,
                generation=generation,
                node=self._config.name,
                created=created,
                reason=clipped(reason),
                identity=self._identity.value,
            )
        )

    async def delayed(self, key: Key, trouble: Trouble, lasts_s: float, *, over: bool = False) -> None:
        """Report what is done for a container again and again, for how long already, or that this is over.  The same may be
        reported twice by two processes, so the id follows from none of it."""
        app, generation, slot = key
        self._delays += 1
        await self._outbox.put(
            ContainerDelayed(
                id=f"{self._config.name}.{key_name(key)}.delayed.{self._identity.process}.{self._delays}",
                at=self._clock(),
                by=self._config.name,
                app=app,
                generation=generation,
                slot=slot,
                node=self._config.name,
                doing=trouble.doing,
                reason=clipped(trouble.reason),
                code=trouble.code,
                for_s=round(lasts_s, 1),
                failing=trouble.failing,
                over=over,
                identity=self._identity.value,
            )
        )

    async def exited(self, key: Key, seen: Seen | None) -> None:
        """Report its end; `seen` is None if the engine no longer knows it."""
        await self.progress(key, final=True)
        if seen is None:
            await self.refused(key, "lost", "the container is gone; someone or something removed it")
            return
        reason: ExitReason = "out_of_memory" if seen.out_of_memory else "exit"
        if seen.exit_code is None and not seen.out_of_memory:
            reason = "command" if seen.error else "unknown"
        if seen.exit_code == PORT_TAKEN:
            reason = "port"
        message = seen.error
        if (lost := await self._lost_device(key)) and not seen.lease_ended:
            # Its exit code says nothing: 0 may be the answer to a request to stop, and is not the end of its work.
            seen = msgspec.structs.replace(seen, exit_code=None, interrupted=False)
            await self._exited(key, "device", lost, seen)
            return
        if seen.lease_ended:
            message = CUT_OFF
        elif seen.interrupted and not await asyncio.to_thread(self._asked_by_this_agent, key):
            message = (
                "its engine was asked to stop it, the engine or the machine was restarted, or its records are damaged"
            )
        await self._exited(key, reason, message, seen)

    async def _lost_device(self, key: Key) -> str:
        """Return why a GPU's loss ended it, in words; "" if it did not, or if it was asked to stop before."""
        if key not in self._lost and not self._config.gpu_ids:
            return ""
        if not (why := self._lost.get(key, "")):
            why = await asyncio.to_thread(self._ledger.lost_device, key)
        was_asked = bool(why) and await asyncio.to_thread(self._asked_by_this_agent, key)
        return "" if was_asked else why

    async def refused(self, key: Key, reason: ExitReason, message: str) -> None:
        """Report a container that never ran, or whose end is unknown."""
        await self._exited(key, reason, message, None)

    async def _exited(self, key: Key, reason: ExitReason, message: str, seen: Seen | None) -> None:
        unwanted = key not in self._desired.wanted()
        was_asked = await asyncio.to_thread(self._was_asked, key, seen, unwanted)
        killed = seen is not None and await asyncio.to_thread(self._was_killed, key, seen)
        peer_lost = False
        if seen is not None and seen.exit_code and reason == "exit" and not message and not was_asked:
            message, peer_lost = await last_words(self._runtime, key)
        doubt = self.doubts.get(key)  # In case its start was never reported.
        if seen is not None and (was_asked or seen.exit_code != 0):
            doubt = await self._doubt_after(key)
        self._desired.exited.add(key)
        try:
            await asyncio.to_thread(self._ledger.free_devices, key)
        except OSError as error:  # A disk that takes no change must not keep its end from the log.
            _log.error("a note could not be written", node=self._config.name, key=key, reason=str(error))
        app, generation, slot = key
        _log.info("exited", app=app, generation=generation, slot=slot, reason=reason, asked=was_asked, message=message)
        await self._outbox.put(
            ContainerExited(
                id=f"{self._config.name}.{key_name(key)}.exited",
                at=self._clock(),
                by=self._config.name,
                app=app,
                generation=generation,
                slot=slot,
                node=self._config.name,
                exit_code=seen.exit_code if seen else None,
                asked=was_asked,
                killed=killed,
                reason=reason,
                message=clipped(message),
                started_at=seen.started_at if seen else 0,
                exited_at=seen.exited_at if seen else self._clock(),
                identity=self._identity.value,
                usage=self._usage.of(key),
                origin_digest=self.origins.get(app, "") if seen else "",
                doubt=doubt,
                peer_lost=peer_lost,
            )
        )

    async def _doubt_after(self, key: Key) -> Doubt | None:
        """Return which files of the app's checkpoint are in doubt after the end of a container that was not done.  Only the
        containers that report checkpoints are worth a look, and the lowest slot, for a checkpoint of an earlier
        generation."""
        app, watched = self._desired.apps.get(key.app), self._progress.get(key)
        if (watched is None or not watched.file.saved) and (app is None or key.slot != app.first_slot):
            return None
        return await self._look(key.app, partial(checkpoints.look, self._config.checkpoints, key.app, key.generation))

    async def judge(self, key: Key, *, fall_back: bool) -> None:
        """Note what is in doubt before the first container of a generation starts; `fall_back` sets it aside.  Raises
        Unavailable if that has to be done and the folder does not answer."""
        judge = partial(checkpoints.judge, self._config.checkpoints, key.app, key.generation, fall_back=fall_back)
        judgement = await self._look(key.app, judge, needed=fall_back)
        if judgement is not None:
            self.doubts[key] = judgement

    async def wait_for_judgement(self, key: Key) -> None:
        """Raises Unavailable until the node of the lowest slot has set aside what is in doubt."""
        judged = partial(checkpoints.is_judged, self._config.checkpoints, key.app, key.generation)
        if not await self._look(key.app, judged, needed=True):
            raise Unavailable(
                f"{key.app}: another node sets its doubtful checkpoint aside", code="checkpoints.not_judged"
            )

    async def _look(self, app: str, look: Callable[[], T], *, needed: bool = False) -> T | None:
        """Return the result of a look at an app's files; None if that takes too long, or if it is `needed`, Unavailable."""
        known = self._desired.apps.get(app)
        try:
            async with asyncio.timeout(_LOOK_S):
                return await self._looking.run(known.owner if known is not None else "", look)
        except (TimeoutError, OSError) as error:
            text = f"the checkpoints of {app} can't be looked at: {str(error) or 'their folder does not answer'}"
            if needed:
                raise Unavailable(text, code="checkpoints.unavailable") from None
            _log.warning(text, node=self._config.name)
            return None

    def _was_asked(self, key: Key, seen: Seen | None, unwanted: bool) -> bool:
        """Return whether it was asked to stop: by this agent, by an earlier one, by the end of the lease, or by another
        process on the machine.

        If no note exists and this process never saw it run, an exit code of 0 of an unwanted container counts as the answer
        to a request whose note was lost: at worst a finished app is resumed and ends again."""
        if self._asked_by_this_agent(key):
            return True
        if seen is not None and (seen.lease_ended or seen.interrupted):
            return True
        done = seen is not None and seen.exit_code == 0
        return done and unwanted and key not in self._lived

    def _asked_by_this_agent(self, key: Key) -> bool:
        """Return whether this agent, or one before it on this node, asked it to stop.  An engine remembers a request,
        but not its author."""
        return key in self._asked or self._ledger.asked(key)

    def _was_killed(self, key: Key, seen: Seen) -> bool:
        """Return whether it was killed after a request to stop; the exit code shows it if the agent died before noting it."""
        if seen.lease_ended or seen.out_of_memory or not self._asked_by_this_agent(key):
            return False
        return seen.exit_code == _KILLED or self._ledger.killed(key)

    async def watch_progress(self) -> None:
        """Report progress without end.  Each container is watched in its own task, so that none waits for another's file."""
        looking: dict[Key, None] = {}
        async with asyncio.TaskGroup() as looks:
            looks.create_task(self._feed.run())
            while True:
                await self._some_run.wait()
                self._some_change.clear()
                for key in self._running:
                    if key not in looking:
                        looking[key] = None
                        looks.create_task(self._look_at_progress(key, looking))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s()):
                        await self._some_change.wait()

    def _pause_s(self) -> float:
        """Return how long to wait before the next look at progress."""
        now = asyncio.get_running_loop().time()
        known = [self._progress.get(key) for key in self._running]
        if any(watched is None or watched.hurries(now) for watched in known):
            return _PROGRESS_POLL_S
        return max(_PROGRESS_POLL_S, self._config.progress_interval_s / 2)

    async def _look_at_progress(self, key: Key, looking: dict[Key, None]) -> None:
        try:
            await self.progress(key, final=False)
        except OSError as error:
            if self._repeats.due(f"{key}", asyncio.get_running_loop().time(), code_of(error)):
                _log.warning("progress can't be read", node=self._config.name, key=key, reason=str(error))
        finally:
            del looking[key]

    async def progress(self, key: Key, *, final: bool) -> None:
        """Publish the present reports of its progress file; with `final` also those that the rate held back."""
        watched = self._progress.get(key)
        if watched is None:
            path = self._runtime.run_dir(key) / PROGRESS_FILE
            logged, app = self._desired.logged.get(key), self._desired.apps.get(key.app)
            live = app is not None and app.live
            marks = Watermarks(
                stalls_s=app.spec.deadlines.progress_s if app is not None else None,
                marked=logged is not None and logged.progressed > 0,
            )
            watched = Watched(ProgressFile(key, path, self._config.progress_interval_s, logged, live=live), marks)
            self._progress[key] = watched
        watched.note(self._membership(key), asyncio.get_running_loop().time())
        async with watched.lock:  # so that facts of one container stay in the order of their lines
            await self._report_progress(key, watched, final)

    async def _report_progress(self, key: Key, watched: Watched, final: bool) -> None:
        facts = await self._read_progress(key, watched, final)
        if watched.file.saved > watched.believed:
            # Before it is published, so that the program has had as little time as possible to go on.
            watched.believed = watched.file.saved
            await self._look(key.app, partial(checkpoints.note, self._config.checkpoints, key.app, key.generation))
        now = asyncio.get_running_loop().time()
        for fact, on_log in watched.marks.chosen(facts, now, final=final):
            if isinstance(fact, AppCheckpointed) and not await self._shared():
                _log.error(
                    "a checkpoint is not in the shared folder, so it does not count", node=self._config.name, key=key
                )
                continue
            event = msgspec.structs.replace(
                fact,
                id=f"{self._config.name}.{key_name(key)}.{fact.id}",
                at=self._clock(),
                by=self._config.name,
            )
            if isinstance(event, AppProgressed) and not on_log:
                self._feed.put(event)
            else:
                await self._outbox.put(event, last=final)

    async def _read_progress(self, key: Key, watched: Watched, final: bool) -> list[ProgressFact]:
        """Read the file, but give up if that takes too long: only this container is affected, and no other waits for it."""
        facts: list[ProgressFact] = []
        try:
            async with asyncio.timeout(_READ_S), self._readers:
                if watched.reading is not None:  # A thread can't be stopped: wait here for a slow one.
                    facts += await watched.result()
                now = asyncio.get_running_loop().time()
                watched.reading = asyncio.create_task(asyncio.to_thread(watched.file.read, now, final=final))
                facts += await watched.result()
        except TimeoutError:
            _log.warning("a progress file can't be read", node=self._config.name, key=key, seconds=_READ_S)
        if watched.file.skipped and not watched.noted:
            watched.noted = True
            _log.warning(
                "part of a progress file is skipped: too long a line, or written faster than it is read",
                node=self._config.name,
                key=key,
                bytes=watched.file.skipped,
            )
        return facts

    async def forget(self, key: Key) -> None:
        """Drop all notes about a container that is gone."""
        await asyncio.to_thread(self._ledger.forget, key)
        self._progress.pop(key, None)
        self._asked.discard(key)
        self.doubts.pop(key, None)
        self._lived.discard(key)
        self._lost.pop(key, None)
