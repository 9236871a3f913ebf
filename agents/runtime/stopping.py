"""How a container is asked to stop: who gets the signal, in which order, and what is left alone meanwhile.

A container rarely is one process.  `bash run.sh` starts a training program, which starts data loaders; `python train.py | tee
log` is a shell and two programs.  If all of them get SIGTERM at once, the loaders die under the step that should be saved,
`tee` dies and the program's next line breaks its pipe, and a shell that ended takes its container with it.  So the request
goes to the programs that can do something about it, and everything else waits for them:

1. From the container's main process down, a process that **handles** the signal (a handler, or blocked for sigwait(2)) is
   **asked**; its own helpers are left to it.  One that does not handle it (a shell, `conda run`, a launcher with `subprocess`)
   passes the question on to what it started.  A shell does so even if it has a trap, since it runs that only after its
   foreground command has ended.
2. Shells above an asked program are **held** (SIGSTOP) until it has ended, so that a script does not go on with its next
   command.  A shell at the other end of a program's pipe is not: the program could not write any more.
3. When all asked programs have ended, SIGTERM goes to everything that is left, a held shell continues with it, and programs
   that read a pipe get a moment to read its end.  What these start in their traps is left alone.
4. If nothing below a shell with a trap handles the signal, the shell is asked, and so is its foreground command: the shell
   runs the trap only when that has ended.  A command in the background, which ignores SIGINT and SIGQUIT below a shell script
   (POSIX.1-2017, XCU 2.11), is left to the trap.  Such a shell is held before the look that decides this: a command that it
   starts during the look would be taken for one of its trap, and the trap would wait for it until the grace time is over.
5. If nothing handles the signal, SIGTERM goes to everything at once: nobody has anything to save.

The caller kills what is left when the grace time is over.  Until then, a container has ended only when its last process has.

Helpers of Python programs need a closer look, because they also run below a program that handles no signal.  A worker of
PyTorch's data loader handles SIGTERM, only to end with its parent; it is recognized by the signals that it handles (those
that PyTorch's C code sets, and not SIGABRT, which `faulthandler` adds), and is never asked.

A supervisor runs this, and so does the agent for containers of a Docker engine on its machine.  It imports little, because
supervisors run outside the virtual environment.  Processes are identified by pid and start time, and signals go through
pidfds, so no signal reaches another process that got the same number.
"""

import os
import signal
from itertools import islice

from agents import lease

TYPE_CHECKING = False  # typing itself would cost a third of a supervisor's start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Id = tuple[int, str]
    """Pid and start time."""
    Signal = tuple[Id, int]
    """A process, and the number of the signal that it gets."""

FILE = "stop"
"""The file in a container's folder, out of its reach, with how it is asked: `SIGNAL main|group BEFORE_SECONDS`."""
DEFAULT = "SIGTERM main 0"
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT")
"""Those of `events.spec`, which a script outside the virtual environment can't import."""
SHELLS = frozenset(("sh", "bash", "dash", "ash", "rbash", "zsh", "ksh", "ksh93", "mksh", "yash", "fish", "tcsh", "csh"))
STOPPED_S = 1.0
"""Seconds that a shell may need to stop once it got SIGSTOP."""
SETTLE_S = 1.0
"""Seconds that readers of a pipe get to read its end."""
LOOKS_S = (0.1, 0.5, 2.0)
"""Seconds between looks at all processes: once everything was signalled to end, while asked programs run (others may appear
below a wrapper), and after a while."""
LOOK_S = 0.0005
"""More seconds for each process, so that looks at thousands do not keep a core busy."""
A_WHILE_S = 10.0
MOST_PROCESSES = 2000
"""Processes of a container that are examined, those near its main process first; others count as unknown.  The process
that looks also enforces the node's lease, so no container may decide how long a look takes."""
LOOKS_AGAIN = 4
"""Number of times that processes whose parent ended during a look are looked at."""
MOST_DESCRIPTORS = 32
"""Number of descriptors of a shell that are examined; one with more reads an unknown pipe."""
_LOADER = (signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)


class Process:
    """A process of a container, as /proc shows it (proc(5))."""

    __slots__ = ("background", "handled", "id", "parent", "pid", "reads", "shell", "state", "writes")

    def __init__(
        self,
        pid: int,
        parent: int,
        start: str,
        state: str = "S",
        *,
        handled: int = 0,
        background: bool = False,
        shell: bool = False,
        reads: "tuple[str, ...]" = (),
        writes: "tuple[str, ...]" = (),
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.id = (pid, start)
        self.state = state
        self.handled = handled
        """A bit for each signal that it catches or blocks, and does not ignore."""
        self.background = background
        """Whether it ignores SIGINT or SIGQUIT, as what a script starts with `&` does."""
        self.shell = shell
        self.reads = reads
        """Pipes that it reads: its standard input, and of a shell every descriptor, as `$(…)` and `< <(…)` have others."""
        self.writes = writes
        """Pipes that are its standard output and error."""

    def handles(self, number: int) -> bool:
        return bool(self.handled >> (number - 1) & 1)

    @property
    def is_loader(self) -> bool:
        """Whether it is a worker of PyTorch's data loader."""
        return all(self.handles(number) for number in _LOADER) and not self.handles(signal.SIGABRT)


class Stopping:
    """The way of one container to its end.  Without I/O: processes in, signals out."""

    def __init__(self, request: str = DEFAULT, signalled: "Iterable[Id]" = ()) -> None:
        """`request` has the format of FILE; `signalled` are the processes that an earlier agent has asked already."""
        fields = request.split()
        name, to, before = fields if len(fields) == 3 and fields[0] in SIGNALS else DEFAULT.split()
        self._number = int(getattr(signal, name))
        self._to_group = to == "group"
        self._before_s = _seconds(before)
        self._begun: float | None = None
        self._paused: list[Id] = []
        """Shells that are held only until a look that follows (4.)."""
        self._held: dict[Id, None] = {}
        """Those that got SIGSTOP and not SIGCONT: on a busy machine a process shows that only after a while."""
        self._look_at = 0.0
        self.signalled: dict[Id, bool] = dict.fromkeys(signalled, False)
        """Those that got the signal, in the order of their turn, without those that ended long ago, and whether each was a
        shell then."""
        self._somebody = bool(self.signalled)
        """Whether anybody was asked, also one that has ended."""
        self._terminated: dict[Id, None] = {}
        self._missed: dict[Id, None] = {}
        self._settled_at: float | None = None

    def waits(self, now: float, alive: "Callable[[Id], bool]") -> bool:
        """Return whether nothing can have changed that calls for a look at all processes: cheaper than `step`."""
        if self._begun is None or self._paused or now >= self._look_at:
            return False
        if self._settled_at is not None:
            return True
        if self._before_s and now >= self._begun + self._before_s:
            return False
        return any(alive(id_) for id_ in self.signalled)

    def step(self, now: float, table: "dict[int, Process]", main: int) -> "list[Signal]":
        """Return the signals that are due.  `now` in seconds of a clock that only goes forward, `table` holds all processes of
        the container by pid, `main` is the pid of its main process, also of one that has ended."""
        live = {process.id: process for process in table.values() if process.state not in "ZX"}
        self._forget(live)
        for id_ in [id_ for id_, shell in self.signalled.items() if shell and id_ in live and not live[id_].shell]:
            # A shell that was about to become its command, and has lost the signal with its handlers (execve(2)).
            del self.signalled[id_]
        stopping = any(id_ in live and live[id_].state != "T" for id_ in self._paused)
        if stopping and now < (self._begun or 0.0) + STOPPED_S:
            return []
        if self._begun is None or self._paused:
            self._begun = now
            return self._ask(now, live, main, newcomers=False)
        if self._before_s and self._settled_at is None and now >= self._begun + self._before_s:
            self._before_s, self._number, self._to_group = 0.0, int(signal.SIGTERM), False
            self.signalled, self._somebody = {}, False
            return self._ask(now, live, main, newcomers=False)
        if any(id_ in live for id_ in self.signalled):
            return self._ask(now, live, main, newcomers=True)
        return self._finish(now, live)

    def _forget(self, live: "dict[Id, Process]") -> None:
        """Forget those that have ended, by two looks: a wrapper may start another program for each, all grace time."""
        for known in (self.signalled, self._terminated, self._held):
            for id_ in [id_ for id_ in known if id_ in self._missed and id_ not in live]:
                del known[id_]
        self._missed = {id_: None for id_ in (*self.signalled, *self._terminated, *self._held) if id_ not in live}

    def _ask(self, now: float, live: "dict[Id, Process]", main: int, *, newcomers: bool) -> "list[Signal]":
        self._look_at = now + LOOKS_S[1 if now < (self._begun or 0.0) + A_WHILE_S else 2] + len(live) * LOOK_S
        paused, self._paused = self._paused, []
        if self._to_group:
            new = [] if newcomers else [process for process in _by_depth(live) if process.id not in self.signalled]
            return self._asking(new)
        chosen, above = self._choose(live, main)
        if not chosen and not self._somebody:
            if self._number == signal.SIGTERM:
                return self._finish(now, live)
            self._number, self._before_s = int(signal.SIGTERM), 0.0  # nothing handles the app's own signal
            chosen, above = self._choose(live, main)
            if not chosen:
                return self._finish(now, live)
        if not newcomers and not paused and self._number == signal.SIGTERM:
            self._paused = [process.id for process in chosen if process.shell and process.state != "T"]
            if self._paused:
                return self._hold(self._paused)
        programs = [*chosen, *(live[id_] for id_ in self.signalled if id_ in live)]
        read = {pipe for program in programs for pipe in program.reads}
        held = [process for process in above if not process.reads and not read.intersection(process.writes)]
        # A shell is held before its program is asked, or it could go on first; the outer one before the inner one.
        signals = self._hold([process.id for process in held if process.state != "T"])
        kept = {process.id for process in (*held, *chosen)}
        for each in [each for each in paused if each in live and each not in kept]:
            signals.append((each, int(signal.SIGCONT)))
            self._held.pop(each, None)
        return [*signals, *self._asking(chosen), *self._end_foreground(live, chosen)]

    def _hold(self, shells: "list[Id]") -> "list[Signal]":
        self._held.update(dict.fromkeys(shells))
        return [(shell, int(signal.SIGSTOP)) for shell in shells]

    def _end_foreground(self, live: "dict[Id, Process]", chosen: "list[Process]") -> "list[Signal]":
        """Signal the foreground commands of shells that are asked to end, or no trap runs."""
        if self._number != signal.SIGTERM:
            return []
        below = _children(live)
        waited_for = [
            process for top in chosen if top.shell for process in below.get(top.pid, ()) if not process.background
        ]
        for process in waited_for:
            waited_for += [child for child in below.get(process.pid, ()) if child.id not in self._terminated]
            self._terminated[process.id] = None
        return self._signals(waited_for, int(signal.SIGTERM))

    def _asking(self, chosen: "list[Process]") -> "list[Signal]":
        for process in chosen:
            self.signalled[process.id], self._somebody = process.shell, True
        return self._signals(chosen, self._number)

    def _choose(self, live: "dict[Id, Process]", main: int) -> "tuple[list[Process], list[Process]]":
        """Return the processes to ask, without those that were, and the shells above an asked one; parents come first."""
        below = _children(live)
        first = next((process for process in live.values() if process.pid == main), None)
        # Without a main process, what is left below an asked one is that one's own.
        order = [first] if first is not None else [] if self._somebody else _roots(live)
        met = {
            process.pid for process in order
        }  # a table that was read while processes came and went may hold a circle
        for process in order:  # which grows meanwhile: a list, since a hostile tree may be deeper than a stack
            if process.id not in self.signalled and (process.shell or not process.handles(self._number)):
                order += [child for child in below.get(process.pid, ()) if child.pid not in met and not child.is_loader]
                met.update(child.pid for child in below.get(process.pid, ()))
        chosen, above = [], []
        passed = set()  # pids of processes at or below which somebody is asked
        for process in reversed(order):
            if process.id in self.signalled:
                passed.add(process.pid)
            elif (process.shell or not process.handles(self._number)) and any(
                child.pid in passed for child in below.get(process.pid, ())
            ):
                passed.add(process.pid)
                if process.shell:
                    above.append(process)
            elif process.handles(self._number):
                passed.add(process.pid)
                chosen.append(process)
        return chosen[::-1], above[::-1]

    def _signals(self, processes: "Iterable[Process]", number: int) -> "list[Signal]":
        signals = []
        for process in processes:
            signals.append((process.id, number))
            if (
                process.state == "T" or process.id in self._held
            ):  # Such as a shell that was held for a program that has ended.
                signals.append((process.id, int(signal.SIGCONT)))
                self._held.pop(process.id, None)
        return signals

    def _finish(self, now: float, live: "dict[Id, Process]") -> "list[Signal]":
        """Signal everything to end, except for what an asked or signalled process does on its way."""
        if self._settled_at is None:
            self._settled_at = now + SETTLE_S
        self._look_at = now + LOOKS_S[0 if now < self._settled_at + A_WHILE_S else 2] + len(live) * LOOK_S
        ended = (*self._terminated, *self.signalled)
        busy = {id_[0] for id_ in ended if id_ in live}  # pids of traps that run, and then of their commands
        left = []
        for process in _by_depth(live):
            if process.id in self._terminated or process.id in self.signalled:
                continue
            if process.parent in busy:
                busy.add(process.pid)
            elif now >= self._settled_at or not process.reads or process.state == "T":
                left.append(process)
        self._terminated.update(dict.fromkeys(process.id for process in left))
        return self._signals(left, int(signal.SIGTERM))


def _seconds(text: str) -> float:
    try:
        return max(0.0, min(float(text), 86_400.0))
    except ValueError:
        return 0.0


def _children(live: "dict[Id, Process]") -> "dict[int, list[Process]]":
    below: dict[int, list[Process]] = {}
    for process in sorted(live.values(), key=lambda process: process.pid):
        below.setdefault(process.parent, []).append(process)
    return below


def _roots(live: "dict[Id, Process]") -> "list[Process]":
    pids = {process.pid for process in live.values()}
    return [process for process in sorted(live.values(), key=lambda process: process.pid) if process.parent not in pids]


def _by_depth(live: "dict[Id, Process]") -> "list[Process]":
    """Return all of them, parents before their children."""
    below = _children(live)
    order = _roots(live)
    for process in order:
        order += below.get(process.pid, ())
    return order


def look(top: int, proc: str = "/proc") -> "dict[int, Process]":
    """Return all descendants of a process, by pid.  What can't be read of one that has just ended, or belongs to another
    user, counts as unknown, as does one beyond `MOST_PROCESSES`: such a process handles nothing, and a shell among them is not
    recognized."""
    parents: dict[int, tuple[int, str, str]] = {}
    below: dict[int, list[int]] = {}
    waiting = [int(name) for name in os.listdir(proc) if name.isdigit()]
    for _ in range(LOOKS_AGAIN):
        for pid in waiting:
            parents.pop(pid, None)
            try:
                with open(f"{proc}/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has gone
            parents[pid] = int(fields[1]), fields[19].decode(), fields[0].decode()
        # The parent ended meanwhile, so each of these has another one by now.
        waiting = [pid for pid, (parent, _, _) in parents.items() if parent and parent not in parents]
    for pid, (parent, _, _) in parents.items():
        below.setdefault(parent, []).append(pid)
    pids = []
    waiting = [top]
    for pid_ in waiting:
        waiting += below.get(pid_, ())
        if pid_ != top:
            pids.append(pid_)
    examined = set([pid for pid in pids if parents[pid][2] not in "ZX"][:MOST_PROCESSES])
    return {pid: _read(pid, *parents[pid], proc) if pid in examined else Process(pid, *parents[pid]) for pid in pids}


def _read(pid: int, parent: int, start: str, state: str, proc: str) -> Process:
    folder = f"{proc}/{pid}"
    masks = {b"SigBlk": 0, b"SigIgn": 0, b"SigCgt": 0}
    try:
        with open(f"{folder}/status", "rb") as file:
            for line in file:
                name, _, value = line.partition(b":")
                if name in masks:
                    masks[name] = int(value, 16)
    except (OSError, ValueError):
        pass
    shell = _is_shell(folder)
    reads = _read_ends(folder) if shell else _pipes(folder, ("0",))
    handled = (masks[b"SigCgt"] | masks[b"SigBlk"]) & ~masks[b"SigIgn"]
    # A shell without job control does that to what it does not wait for (POSIX, 2.11); programs seldom do it themselves.
    background = bool(masks[b"SigIgn"] & (1 << signal.SIGINT - 1 | 1 << signal.SIGQUIT - 1))
    return Process(
        pid, parent, start, state,
        handled=handled, background=background, shell=shell, reads=reads, writes=_pipes(folder, ("1", "2")),
    )  # fmt: skip


def _pipes(folder: str, descriptors: "Iterable[str]") -> "tuple[str, ...]":
    pipes = []
    for descriptor in descriptors:
        try:
            target = os.readlink(f"{folder}/fd/{descriptor}")
        except PermissionError:
            target = "pipe:unknown"
        except OSError:
            continue
        if target.startswith("pipe:"):
            pipes.append(target)
    return tuple(pipes)


def _read_ends(folder: str) -> "tuple[str, ...]":
    """Return the pipes that a shell reads.  If they can't be seen, or are too many, it reads an unknown one, so it is not
    held."""
    pipes: list[str] = []
    try:
        with os.scandir(f"{folder}/fd") as entries:
            descriptors = [entry.name for entry in islice(entries, MOST_DESCRIPTORS + 1)]
        if len(descriptors) > MOST_DESCRIPTORS:
            return ("pipe:unknown",)
        for descriptor in descriptors:
            if pipe := _pipes(folder, (descriptor,)):
                with open(f"{folder}/fdinfo/{descriptor}", "rb") as file:
                    flags = next((line.split()[1] for line in file if line.startswith(b"flags:")), b"0")
                if int(flags, 8) & os.O_ACCMODE == os.O_RDONLY:
                    pipes += pipe
    except PermissionError:
        return ("pipe:unknown",)
    except (OSError, ValueError):
        pass
    return tuple(pipes)


def _is_shell(folder: str) -> bool:
    """Return whether it is a shell, by its program, which a script's name or a changed title does not hide."""
    try:
        program = os.path.basename(os.readlink(f"{folder}/exe").removesuffix(" (deleted)"))
        if program != "busybox":
            return program in SHELLS
        with open(f"{folder}/cmdline", "rb") as file:
            names = [os.path.basename(word) for word in file.read(4096).split(b"\0")[:2]]
    except OSError:
        return False
    return os.fsdecode(names[1 if names[0] == b"busybox" and len(names) > 1 else 0].lstrip(b"-")) in SHELLS


def alive(process: "Id", proc: str = "/proc") -> bool:
    """Return whether it runs, by its own record alone."""
    try:
        with open(f"{proc}/{process[0]}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[19].decode() == process[1] and fields[0] not in (b"Z", b"X")


def _send(pid: int, start: str, number: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # An old kernel, a sandbox, or no descriptor left: better than no signal at all.
        if lease.start_time(pid) == start:
            os.kill(pid, number)
        return
    try:
        if lease.start_time(pid) == start:
            signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def deliver(signals: "Iterable[Signal]", log: "Callable[[str], None]") -> None:
    """Send signals.  One that can't be sent, for example to a program that has changed its user, is reported; a process that
    has ended needs none."""
    for (pid, start), number in signals:
        try:
            _send(pid, start, number)
        except (ProcessLookupError, FileNotFoundError):
            pass
        except OSError as failure:
            log(f"signal {number} to {pid}: {failure}")
