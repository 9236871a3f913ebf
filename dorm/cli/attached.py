"""Output of containers as people read it, and `dorm run`, which stays attached to its app until that ends.

Lines come as their containers' agents send them.  Lines of different containers are in the order of arrival; past lines with
times are merged by them, if the nodes' clocks agree.

A progress bar draws its states on one line, with a carriage return before each.  A followed line that has not ended shows its
last state as a line of its own, at most once a second.  If the output is no terminal, it is less often the longer the bar
lasts: a file gets a number of lines that grows with the logarithm of the time.

`attend` follows one app through all its generations, says between them what happens to its place, and returns its exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import os
import re
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from dorm.cli.errors import DONE, FAILED, INTERRUPTED, Fail, line, report_error
from dorm.cli.output import console, counted, progress_console
from dorm.client.errors import Refused
from dorm.client.output import lines, stamp
from dorm.core.delays import delay_shown, delay_without_time
from dorm.core.gates import reason_of
from dorm.local.hints import hint_for
from events.errors import DormError, code_of
from events.kinds import ContainerExited, Resized, Round
from events.quantities import MEMORY, humanize
from replay.words import begins_again, containers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from dorm.cli.signals import Stops
    from dorm.client.client import Client
    from dorm.client.output import Line, Ran
    from dorm.core.generation import Container, Generation
    from dorm.core.state import App
    from events.kinds import Event


# --- lines of containers ----------------------------------------------------------------------------------------------

MOST_FOLLOWED = 256
"""Containers that one command follows, or merges: each is a subscription of its own, here and at its agent."""
_AT_ONCE = 64
"""Containers whose output is read at the same time."""
_BAR_S = 1.0
"""Seconds between two states of a progress bar."""
_BAR_PART = 0.1
"""The same pause for an output that is no terminal, as a part of the time that the bar has lasted."""
_MOVES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b[78DEHM]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x07\x08\x0b\x0c]")
"""Sequences that move the cursor or clear a part of the screen, which holds lines of other containers too.  Colors stay."""
_UP = re.compile(rb"\x1b\[[0-9]*[AF]")
"""A line that ends above itself is drawn again and again, by several progress bars below each other."""
_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Printer:
    """Prints lines to standard output, at once."""

    def __init__(self, ranks: int, wanted: str = "") -> None:
        """`ranks`: how many containers print here, 0 for no prefixes.  `wanted`: print only lines that contain this text."""
        self._width = len(str(max(0, ranks - 1)))
        self._prefixed = ranks > 0
        self._colored = console.is_terminal and not console.no_color
        self._wanted = wanted.encode("utf-8", "surrogateescape")

    async def print(self, source: AsyncIterator[Line], rank: int) -> None:
        """Print the lines of one container as they come."""
        bar = _Bar(console.is_terminal)
        async with contextlib.aclosing(_until_due(source, bar)) as lines:
            async for line in lines:
                if line is None or (line.whole and not _UP.search(line.text)):
                    self._put(line or bar.taken(), rank, bar)
                else:
                    bar.draw(line)
        if bar.waiting is not None and bar.waiting.whole:
            self._put(bar.taken(), rank, bar)

    def put(self, line: Line, rank: int) -> None:
        """Print a line, if it is wanted."""
        if (shown := self._shown(line)) is not None:
            sys.stdout.buffer.write(self._prefix(rank) + _stamp(line) + shown + b"\n")
            sys.stdout.buffer.flush()

    def _put(self, line: Line, rank: int, bar: _Bar) -> None:
        """Print a line, if it is wanted and not the state of the bar that is there already."""
        shown = self._shown(line) if bar.drawn else None
        if shown is None or shown != bar.shown:
            self.put(line, rank)
        bar.printed(line, shown)

    def _shown(self, line: Line) -> bytes | None:
        """Return a line as it is printed, None if it is not wanted.  Of a progress bar it is the last state: for a search, the
        last one that contains the text."""
        states = line.text.split(b"\r")
        if len(states) > 1:
            states = [state for state in states if state.strip()] or [b""]
        last = next((state for state in reversed(states) if self._wanted in state), None)
        return _MOVES.sub(b"", last) if last is not None and (self._prefixed or line.time is not None) else last

    def _prefix(self, rank: int) -> bytes:
        if not self._prefixed:
            return b""
        text = f"rank {rank:>{self._width}} | "
        # The leading 0 ends a color that another container's line has left on.
        return (f"\x1b[0;{_COLORS[rank % len(_COLORS)]}m{text}\x1b[0m" if self._colored else text).encode()


class _Bar:
    """The progress bar that a container draws on its last line, if any: when its next state is printed."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._began = 0.0
        """Loop time of the first drawing."""
        self._last = -math.inf
        """Loop time of the last printed state; several bars after each other share it."""
        self.drawn = False
        self.waiting: Line | None = None
        """The last state that is not printed yet."""
        self.shown: bytes | None = None
        """The text that was printed last."""

    def draw(self, line: Line) -> None:
        """Take a new state."""
        if not self.drawn:
            self.drawn, self._began = True, asyncio.get_running_loop().time()
        self.waiting = line

    @property
    def due(self) -> float:
        """When the state that waits is printed, in the loop's time."""
        lasted = 0.0 if self._terminal else max(0.0, self._last - self._began)
        return self._last + max(_BAR_S, _BAR_PART * lasted)

    def taken(self) -> Line:
        """Return the state that waits."""
        assert self.waiting is not None
        return self.waiting

    def printed(self, line: Line, shown: bytes | None) -> None:
        """Note that a line was printed, which ends the bar unless it is a state of it."""
        if line is self.waiting:
            self._last = asyncio.get_running_loop().time()
        else:
            self.drawn = False
        self.waiting, self.shown = None, shown


async def _until_due(source: AsyncIterator[Line], bar: _Bar) -> AsyncGenerator[Line | None, None]:
    """Yield the lines, and None whenever the state of a bar that waits is due."""
    coming: asyncio.Task[Line | None] | None = None

    async def following() -> Line | None:
        return await anext(source, None)

    try:
        while True:
            if coming is None and bar.waiting is None:
                line = await following()  # A task for each line would take longer than the line.
            else:
                coming = coming or asyncio.create_task(following())
                if bar.waiting is not None:
                    left = bar.due - asyncio.get_running_loop().time()
                    await asyncio.wait({coming}, timeout=max(0.0, left))
                    if not coming.done() or left <= 0:
                        yield None
                        continue
                line, coming = await coming, None
            if line is None:
                return
            yield line
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


def _stamp(line: Line) -> bytes:
    return b"" if line.time is None else stamp(line.time).encode() + b" "


async def print_all(printer: Printer, outputs: Sequence[AsyncIterator[Line]], *, follow: bool) -> None:
    """Print the output of all ranks as it comes; a rank that can't be read is reported, and the others continue.  With
    `follow` all are read at the same time.  Raises BrokenPipeError if the output's reader is gone."""
    free = asyncio.Semaphore(len(outputs) if follow else _AT_ONCE)

    async def one(rank: int, source: AsyncIterator[Line]) -> None:
        async with free:
            try:
                await printer.print(source, rank)
            except DormError as error:
                _report(rank, error)

    try:
        async with asyncio.TaskGroup() as tasks:
            for rank, source in enumerate(outputs):
                tasks.create_task(one(rank, source))
    except BaseExceptionGroup as failed:
        if failed.subgroup(BrokenPipeError) is None:
            raise
        raise BrokenPipeError from None


async def print_merged(printer: Printer, outputs: Sequence[AsyncIterator[Line]]) -> None:
    """Print the lines of all ranks in the order of their times; a line of unknown time follows the one before it.  A rank that
    can't be read is reported, and the others continue."""

    async def following(rank: int, source: AsyncIterator[Line], after: int) -> tuple[int, int, Line] | None:
        try:
            line = await anext(source, None)
        except DormError as error:
            _report(rank, error)
            return None
        # The order of one rank's own lines stays.
        return None if line is None else (max(after, line.time or 0), rank, line)

    async with asyncio.TaskGroup() as tasks:
        first_lines = [tasks.create_task(following(rank, source, 0)) for rank, source in enumerate(outputs)]
    first = [result for task in first_lines if (result := task.result()) is not None]
    heapq.heapify(first)
    while first:
        time, rank, next_line = first[0]
        printer.put(next_line, rank)
        coming = await following(rank, outputs[rank], time)
        if coming is None:
            heapq.heappop(first)
        else:
            heapq.heapreplace(first, coming)


def report_missed(who: str, lines: int | None, size: int) -> None:
    """Say on stderr that output of a container is not shown."""
    amount = humanize(MEMORY, size)
    what = f"{lines:,} line{'' if lines == 1 else 's'} ({amount})" if lines else f"{amount} of output"
    is_ = "is" if not lines or lines == 1 else "are"
    progress_console.print(
        Text(f"… {who}: {what} {is_} not shown: written faster than read here, and no longer on the node"),
        soft_wrap=True,
    )


def _report(rank: int, error: DormError) -> None:
    report_error(f"rank {rank}: {line(error)}", code_of(error))


# --- an app that is followed to its end -------------------------------------------------------------------------------

_QUIET_S = 5.0
"""Seconds for which an ended app's last output may pause before it is taken for complete."""
_LAST = 8192
"""Bytes of the end of the output, which may say which file is missing."""
_NAMED_PHASES = ("waiting", "retrying", "running")


class Attached:
    """One app as a terminal follows it.  Output goes to stdout, everything else to stderr."""

    def __init__(self, connected: Client, app: App, folder: Path) -> None:
        """`folder`: what was shipped for the app, if anything was."""
        self._client = connected
        self.app = app
        self.folder = folder
        self.last_output = b""
        """The end of what its containers wrote."""
        self.exit_code = 0
        """Exit code of the first container of its generation that failed by itself, and not because it had lost another, if there is
        one; 0 while none has failed."""
        self._failed_in = 0
        self._follows_another = False
        """Whether that container failed because it had lost another."""
        self._changed = asyncio.Event()
        self._flows = asyncio.Event()
        self._flows.set()
        self._printed = 0
        self._last_printed = ""
        self._hinted = False
        self._resumed = 0, ""
        """A generation, and where it continues from; it may save more checkpoints later."""

    async def follow(self) -> None:
        """Return once the app has ended and its output is printed.  Raises BrokenPipeError if the reader is gone."""
        printing = asyncio.create_task(self._print())
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({printing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if printing.done():
                printing.result()
            await watching
            await self._drain(printing)
        finally:
            for task in (printing, watching):
                task.cancel()
            await asyncio.gather(printing, watching, return_exceptions=True)

    async def _drain(self, printing: asyncio.Task[None]) -> None:
        """Wait for the rest of the output, as long as there comes any."""
        printed = -1
        while not printing.done() and (printed != self._printed or not self._flows.is_set()):
            printed = self._printed
            await asyncio.wait({printing}, timeout=_QUIET_S)
        if printing.done():
            printing.result()

    async def _watch(self) -> None:
        async for state, events in self._client.watch():
            app = state.apps.get(self.app.id)
            if app is None:
                continue
            self.app = app
            self._note_exits(events)
            self._print_lost_work(events)
            self._print_phase()
            self._changed.set()
            if app.ended:
                return

    def _note_exits(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ContainerExited) and event.app == self.app.id and not event.asked:
                if event.generation != self._failed_in:
                    self._failed_in, self.exit_code = event.generation, 0
                if event.exit_code and (not self.exit_code or (self._follows_another and not event.peer_lost)):
                    self.exit_code, self._follows_another = event.exit_code, event.peer_lost

    def _print_lost_work(self, events: Sequence[Event]) -> None:
        """Say which work a decision undoes, and once what its user can do about that."""
        decided = (fact for event in events if isinstance(event, Round) for fact in event.events)
        changes = (change for fact in decided if isinstance(fact, Resized) for change in fact.changes)
        for change in changes:
            if change.app != self.app.id or not change.lost_s:
                continue
            to = containers(len(change.placement)) if change.placement else "no containers"
            lines = [f"{self.app.name}: resized to {to}; it {begins_again(change.lost_s)}"]
            if not self._hinted:
                self._hinted = True
                lines.append(
                    "hint: report each checkpoint in DORM_PROGRESS, or forbid resizes "
                    f"(`dorm edit {self.app.name} --set resizable=never`)"
                )
            for text in lines:
                progress_console.print(Text(text))

    def _print_phase(self) -> None:
        """Say what changed about the app's place, in one line."""
        app = self.app
        delayed = delay_without_time(app)
        if delayed and f"{app.phase}: {delayed}" != self._last_printed:
            self._last_printed = f"{app.phase}: {delayed}"
            progress_console.print(Text(f"{app.name}: {app.phase}: {delay_shown(app, time.time_ns())}"))
        if delayed or app.phase not in _NAMED_PHASES:
            return
        running = sum(1 for _ in app.running_containers())
        reason = reason_of(app, time.time_ns())
        if app.phase == "waiting" and reason is None:
            return  # It was just accepted: the next decision says more.
        if app.phase == "running":
            line = f"running, {counted(running, 'container')}{self._continues()}"
        else:
            line = f"{app.phase}: {reason.text}" if reason is not None else app.phase
        if line != self._last_printed:
            self._last_printed = line
            progress_console.print(Text(f"{app.name}: {line}"))

    def _continues(self) -> str:
        """After a restart: from where it resumes.  An app that saves nothing starts over with each resize, which its user
        should know."""
        app = self.app
        if app.generation != self._resumed[0]:
            from_step = "from the start: it has reported no checkpoint"
            if app.checkpoint is not None:
                from_step = f"from its checkpoint at step {app.checkpoint}"
            self._resumed = app.generation, "" if app.generation <= 1 or app.spec.elastic else f", {from_step}"
        return self._resumed[1]

    async def _print(self) -> None:
        done = 0
        while True:
            self._changed.clear()
            numbers = sorted(g.number for g in self.app.generations.values() if g.number > done and _has_output(g))
            if numbers:
                await self._print_generation(numbers[0])
                done = numbers[0]
            elif self.app.ended:
                return
            else:
                await self._changed.wait()

    async def _print_generation(self, number: int) -> None:
        """Print a generation's output until it has ended: one container's bytes as they are, so that progress bars
        work, or all containers' lines with their ranks before them."""
        if self.app.n_max == 1:
            await self._print_rank(number, 0, None)
            return
        printer = Printer(self.app.n_max)
        begun: set[int] = set()
        try:
            async with asyncio.TaskGroup() as ranks:
                while True:
                    self._changed.clear()
                    for slot, rank in self._started(number):
                        if slot not in begun and self._may_follow(slot, len(begun)):
                            ranks.create_task(self._print_rank(number, rank, printer, slot))
                        begun.add(slot)
                    if not self._is_latest(number):
                        break
                    await self._changed.wait()
        except BaseExceptionGroup as failed:
            if failed.subgroup(BrokenPipeError) is None:
                raise
            raise BrokenPipeError from None

    def _may_follow(self, slot: int, followed: int) -> bool:
        if followed == MOST_FOLLOWED:
            progress_console.print(
                Text(
                    f"{self.app.name}: only {followed} containers are followed; `dorm logs -f {self.app.name} --slot {slot}` "
                    "reads another one"
                )
            )
        return followed < MOST_FOLLOWED

    def _is_latest(self, number: int) -> bool:
        """Return whether more containers of a generation may start."""
        return not self.app.ended and not any(
            g.number > number and _has_output(g) for g in self.app.generations.values()
        )

    def _started(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield slot and rank of all containers of a generation that have started."""
        generation = self.app.generations.get(number)
        slots = sorted(generation.containers) if generation is not None else []
        for rank, slot in enumerate(slots):
            if generation is not None and _may_have_output(generation.containers[slot]):
                yield slot, rank

    async def _print_rank(self, number: int, rank: int, printer: Printer | None, slot: int | None = None) -> None:
        try:
            ran = await self._client.output.generation(self.app, number)
            chunks = self._chunks(ran, ran.slot(slot=slot))
            if printer is not None:
                await printer.print(lines(chunks, bars=True), rank)
                return
            async for chunk in chunks:
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
        except DormError as error:
            who = self.app.name if printer is None else f"{self.app.name}, rank {rank}"
            progress_console.print(Text(f"{who}: its output can't be followed: {error}"))

    async def _chunks(self, ran: Ran, slot: int) -> AsyncIterator[bytes]:
        missed = partial(report_missed, ran.named(slot))
        async for chunk in self._client.output.read_slot(ran, slot, follow=True, tail=None, missed=missed):
            await self._flows.wait()
            self._printed += len(chunk)
            self.last_output = (self.last_output + chunk)[-_LAST:]
            yield chunk

    @contextlib.contextmanager
    def quiet(self) -> Iterator[asyncio.Event]:
        """Hold back the output, so that a question stays readable; after it too, if the event is set meanwhile."""
        stays = asyncio.Event()
        self._flows.clear()
        try:
            yield stays
        finally:
            if not stays.is_set():
                self._flows.set()


def _has_output(generation: Generation) -> bool:
    """Return whether a container has started: the log of a container that has not started is empty, and ends at
    once."""
    return any(_may_have_output(container) for container in generation.containers.values())


def _may_have_output(container: Container) -> bool:
    """Return whether it may have written anything: not if it could not be started."""
    return bool(container.started_at) or container.state == "running" or container.exit_code is not None


async def attend(connected: Client, app: App, signals: Stops, folder: Path) -> int:
    """Follow an app until it ends or its user leaves it; return the exit code of the command.  `folder`: what was shipped for
    it, if anything was.  Raises Fail for an app that did not complete."""
    attached = Attached(connected, app, folder)
    following = asyncio.create_task(attached.follow())
    try:
        while not await _ends_before(following, signals.first):
            choice = await _choice(attached, following, signals)
            if choice == "detach":
                progress_console.print(Text(f"{app.name} keeps running; `dorm logs -f {app.name}` follows it again"))
                return DONE
            if choice == "cancel":
                return await _cancel(connected, attached, following, signals)
            signals.first.clear()
            signals.second.clear()
            progress_console.print(Text(f"{app.name}: followed on"))
        return await _outcome(attached)
    except BrokenPipeError:
        progress_console.print(
            Text(f"{app.name} keeps running, but its output is not read; `dorm cancel {app.name}` ends it")
        )
        raise
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _ends_before(following: asyncio.Task[None], event: asyncio.Event) -> bool:
    """Wait for either; return whether the app has ended.  Raises what following it raised."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if following.done():
        following.result()
        return True
    return False


async def _choice(attached: Attached, following: asyncio.Task[None], signals: Stops) -> str:
    """Return `detach`, `cancel`, or "" to continue.  Only a terminal is asked: a script that interrupts wants the end, and a
    terminal that was closed leaves the app alone."""
    if signals.cause == signal.SIGHUP:
        return "detach"
    if signals.cause != signal.SIGINT or not (os.isatty(0) and os.isatty(2)):
        return "cancel"
    with attached.quiet() as silent:
        question = f"\n{attached.app.name} keeps running: d detaches, c cancels it, Enter keeps following (d/c) "
        progress_console.print(Text(question), end="")
        answer = await _line(signals)
        if signals.cause == signal.SIGHUP:
            return "detach"
        if answer is None or answer.strip().lower().startswith("c"):
            return "cancel"
        if not answer or answer.strip().lower().startswith("d"):
            silent.set()
            return "detach"
    return ""


async def _line(signals: Stops) -> str | None:
    """Return a line from the terminal, "" if it has ended; None if another signal came first."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(0, readable.set)
    reading, stopped = asyncio.create_task(readable.wait()), asyncio.create_task(signals.second.wait())
    try:
        await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(0)
        reading.cancel()
        stopped.cancel()
    return None if signals.second.is_set() else os.read(0, 1024).decode(errors="replace")


async def _cancel(connected: Client, attached: Attached, following: asyncio.Task[None], signals: Stops) -> int:
    """Cancel the app and follow it to its end; another signal leaves it to end alone."""
    name = attached.app.name
    progress_console.print(Text(f"{name} is cancelled; interrupt again to exit without waiting for its end"))
    with contextlib.suppress(Refused):  # It has ended meanwhile, which following it shows.
        await connected.cancel(attached.app.id, "interrupted")
    signals.first.clear()
    signals.second.clear()
    if not await _ends_before(following, signals.first):
        return INTERRUPTED
    return INTERRUPTED if attached.app.ended == "cancelled" else await _outcome(attached)


async def _outcome(attached: Attached) -> int:
    from dorm.cli.project import missing_in

    app = attached.app
    if app.ended == "completed":
        return DONE
    reason = f": {app.end_reason}" if app.end_reason else ""
    cause = await missing_in(app, attached.folder, attached.last_output.decode(errors="replace")) or hint_for(app)
    hint = f"; {cause}" if cause else ""
    raise Fail(f"{app.name} {app.ended}{reason}{hint}", attached.exit_code or FAILED, code=f"app.{app.ended}")
