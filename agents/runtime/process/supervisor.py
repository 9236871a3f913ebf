"""Starts one process-runtime container, outlives the agent, and records how it ended: `python -I -S supervisor.py DIR`.

It imports little (each container costs one such start), because it runs outside the virtual environment.
It detaches from its caller, reports the outcome of the start on stdout (`started`, `busy`, `refused`, or `over` if the node's
lease has expired and nothing was started), then watches.  It is two processes: the supervisor, which does all of this, and
its parent, the guardian, which only waits for the supervisor's end.  In DIR the supervisor reads and writes

    launch   NUL-separated: working directory, size cap of the log in bytes, number of arguments, arguments, environment
    mounts   NUL-separated: name, source, target, `ro` or `rw` of each volume, which the program sees in a mount namespace of
             its own; absent if there are none
    lock     a POSIX lock held from before the start until the end: while it is held the supervisor is alive; it shows its pid
    started  `pid starttime boot_id utc_ns` of the program, whole or absent (written aside, then renamed)
    refused  why the program could not be executed
    stop     how the program is asked to stop (`agents.runtime.stopping`)
    exited   `code utc_ns`, synced to disk, written when nothing of the container runs any more; `code utc_ns lease` if it was
             killed because the node's lease had expired
    log      stdout and stderr together; beyond the cap it moves to log.1 and starts again
    times    when the log had which size (`agents.runtime.process.times`); it moves to times.1 with the log

and beside DIR it reads the node's lease (`agents.lease`), about once a second: when that has expired, agent or not, it kills
the container.  A lease that can't be read any more expires at the deadline read last.  If DIR itself was removed, the
container can't be found and its end can't be recorded, so it is killed at once.

No program outlives its supervisor, even a killed one (-9): the kernel kills the program itself (PR_SET_PDEATHSIG of
prctl(2)), and its descendants pass to the guardian, which kills them.  Children of the program may be left only if guardian
and supervisor are killed at the same moment.

Why a program never starts twice: the lock excludes a second supervisor, a supervisor that finds `started` does nothing,
and the program is a forked child that executes nothing until `started` is on disk and a byte through a pipe has
confirmed it.  If the supervisor dies first, the pipe's end of file makes the child exit instead.  So a folder without
`started` belongs to a program that never ran and may be tried again.  (A power cut may lose the record, but then the
program is gone too.)

The program does not have the agent's priority, limits and protection from a shortage of memory
(`agents.runtime.process.attributes`).  Supervisor and guardian have them: they end the program if the agent is gone.

Signals to the supervisor: at the first SIGTERM, SIGINT or SIGHUP it asks the program to stop (`agents.runtime.stopping`), and
from then on the container ends with its last process; SIGUSR1 kills everything.  When the program ends without having been
asked, its leftovers are killed, as at the end of a Docker container: the supervisor is the subreaper (prctl(2)), so even a
child in its own session is reparented to it.
"""

import ctypes
import errno
import fcntl
import os
import signal
import sys
import time

if not __package__:  # run as a script: our package is next to it, after the standard library
    sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 4)[0])

from agents import lease
from agents.runtime import stopping
from agents.runtime.process import attributes
from agents.runtime.process.times import Times

TYPE_CHECKING = False  # typing itself would cost a third of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedRandom

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
RECORD_BYTES = 64
LEASE = os.path.join("..", lease.FILE)
MOST_COUNTED = 64
"""Largest size of a log whose lines are counted, in multiples of its cap."""
LOOK_S = 1.0
"""Seconds between looks at the log's size and at the lease."""
STOPPING_S = 0.02
"""Seconds between looks at a program that was asked to stop: a script that is held waits for them."""


def write_record(name: str, text: str) -> None:
    """Write a record atomically, and whole even if the power fails.  A supervisor runs outside the virtual environment, so it
    can't use `events.durable`."""
    with open(name + ".new", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(name + ".new", name)


def reserve_record(name: str) -> int:
    """Reserve room for a record on a disk that may be full later, on a machine that may have no free descriptor then.  Return
    its file."""
    file = os.open(name + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    os.write(file, b" " * RECORD_BYTES)
    return file


def write_reserved(folder: int, file: int, name: str, text: str) -> None:
    """Write a record of this open folder atomically, within the room that was reserved."""
    os.pwrite(file, text.ljust(RECORD_BYTES).encode(), 0)
    os.fsync(file)
    os.rename(name + ".new", name)
    try:
        os.fsync(folder)
    except OSError as failure:
        note(f"{name} may be lost if the power fails now: {failure.strerror}")


def note(what: str) -> None:
    """Write to supervisor.log.  On a full disk the message is dropped: it must not end the watch."""
    try:
        sys.stderr.write(what + "\n")
        sys.stderr.flush()
    except OSError:
        pass


def signalled(kill: "Callable[[int, int], None]", target: int, number: int) -> None:
    """Send a signal; a program that changed its user may be out of reach, which must not end the watch."""
    try:
        kill(target, number)
    except OSError as failure:
        note(f"signal {number} to {target}: {failure}")


def read_mounts() -> list[list[str]]:
    """Read the volumes: name, source, target, `ro` or `rw` of each."""
    try:
        with open("mounts", "rb") as file:
            fields = [os.fsdecode(field) for field in file.read().split(b"\0")]
    except FileNotFoundError:
        return []
    if len(fields) % 4:
        raise ValueError("the record of its volumes is damaged")
    return [fields[at : at + 4] for at in range(0, len(fields), 4)]


def enter(mounts: list[list[str]]) -> None:
    """Move to a mount namespace of our own, and mount the volumes there.  Mounts of the machine still arrive in it, and none
    of ours leaves it, so no file of a volume is deleted with the container's folder."""
    if not mounts:
        return
    called("unshare", "a mount namespace", CLONE_NEWNS)
    called("mount", "the mounts of the machine", None, b"/", None, MS_REC | MS_SLAVE, None)
    for name, source, target, access in mounts:
        what, place = f"the volume {name}", os.fsencode(target)
        called("mount", what, os.fsencode(source), place, None, MS_BIND, None)
        only = MS_RDONLY if access == "ro" else 0
        called("mount", what, None, place, None, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | only, None)


def called(function: str, what: str, *arguments: "int | bytes | None") -> None:
    """Call a function of the C library.  Raises OSError that names the missing part."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what} can't be set up: {os.strerror(number)}")


def execute(
    command: list[str],
    workdir: str,
    environment: dict[str, str],
    mounts: list[list[str]],
    log: int,
    gate: int,
    report: int,
) -> None:
    """The child's part: wait for the gate, then become the program, or report why not.  Never returns."""
    try:
        os.setsid()
        prctl(
            PR_SET_PDEATHSIG, signal.SIGKILL
        )  # before the gate: if the supervisor has died by then, the gate shows it
        if os.read(gate, 1) != b"g":
            os._exit(1)
        enter(mounts)
        attributes.take()
        os.chdir(workdir)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Python ignores two of these, and the agent's shell may ignore others; the program starts with none ignored.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(command[0], command, environment)
    except OSError as failure:
        os.write(report, f"{command[0]}: {failure.strerror}".encode("utf-8", "replace"))
    finally:
        os._exit(127)


def start(
    command: list[str], workdir: str, environment: dict[str, str], mounts: list[list[str]]
) -> tuple[int, tuple[int, int], str]:
    """Start the program behind the gate.  Return its pid, the open folder and the file for its `exited` record, and why it
    could not be executed or ""."""
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    gate, opener = os.pipe()
    reading, report = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        os.close(opener)
        execute(command, workdir, environment, mounts, log, gate, report)
    os.close(log)
    os.close(gate)
    os.close(report)
    exited = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), reserve_record("exited")
    write_record("started", f"{pid} {lease.start_time(pid)} {lease.boot_id()} {time.time_ns():019d}")
    os.write(opener, b"g")
    os.close(opener)
    failure = b""
    while part := os.read(reading, 4096):
        failure += part
    os.close(reading)
    return pid, exited, failure.decode("utf-8", "replace")


def look_at_log(times: Times, cap: "int | None" = None) -> None:
    """Note the log's size, keep it below its cap if there is one, and keep the part before it in log.1.  A log that can't be
    opened (for example because its folder was removed) is left alone: it must not end the watch."""
    try:
        with open("log", "rb+") as log:
            size = os.fstat(log.fileno()).st_size
            times.note(size)
            if cap is not None and size > cap:
                kept, size, end, *breaks = move_aside(log, size, cap)
                times.note(size)
                times.moved(end, *breaks, kept=kept)
    except OSError:
        pass


def move_aside(log: "BufferedRandom", size: int, cap: int) -> "tuple[bool, int, int, int | None, int | None]":
    """Move the last `cap` bytes of the log aside.  Return whether they were kept, up to which size, the size at which the log
    was emptied, and how many line breaks it had up to each of the two, None if nobody counted.  The program holds the file
    open for appending, so it is copied and emptied in place; output written in between is lost, but counted up to the last
    moment.  If the disk has no room for the copy, the log is emptied anyway."""
    counted, breaks, counts = 0, 0, size <= MOST_COUNTED * cap
    if counts:
        breaks, counted = count_breaks(log, 0, size - cap), size - cap
        size = os.fstat(log.fileno()).st_size  # Counting took a while.
        breaks += count_breaks(log, counted, size - cap)
    log.seek(size - cap)
    left, kept = cap, True  # no more, however fast the program keeps writing
    try:
        with open("log.1.new", "wb") as old:
            while part := log.read(min(left, 1 << 20)):
                old.write(part)
                left -= len(part)
                breaks += part.count(b"\n")
    except OSError as failure:
        kept, counts = False, False
        note(f"the log could not be moved aside: {failure}")
    # From here to the end of `Times.moved`, readers see that log.1 is newer than times.1, and wait.
    if kept:
        os.rename("log.1.new", "log.1")
    elif os.path.exists("log.1.new"):
        os.unlink("log.1.new")
    end, lost = size, 0
    for _ in range(MOST_COUNTED):  # Counting is faster than writing, so little is left.
        now = os.fstat(log.fileno()).st_size
        if not counts or now == end:
            break
        lost += count_breaks(log, end, now)
        end = now
    os.ftruncate(log.fileno(), 0)
    return kept, size, end, breaks if counts else None, breaks + lost if counts else None


def count_breaks(log: "BufferedRandom", begin: int, end: int) -> int:
    """Return how many line breaks a part of the log has."""
    log.seek(begin)
    left, breaks = end - begin, 0
    while part := log.read(min(left, 1 << 20)):
        left -= len(part)
        breaks += part.count(b"\n")
    return breaks


def children() -> list[int]:
    """Return our children, adopted ones included (proc(5), field 4 of stat)."""
    own = str(os.getpid()).encode()
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    if file.read().rpartition(b")")[2].split()[1] == own:
                        pids.append(int(name))
            except OSError:
                continue  # it has gone
    return pids


def reap(block: bool) -> "tuple[int, int] | None":
    """Return one ended child as (pid, exit code as a shell returns it); None if none has ended, (0, 0) if none is left."""
    try:
        pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
    except ChildProcessError:
        return 0, 0
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return pid, code if code >= 0 else 128 - code


def watch(pid: int, times: Times, cap: int, deadline: "int | None") -> "tuple[int, bool]":
    """Serve signals until the program has ended, or if it was asked to stop, until everything has that it started.  Return the
    program's exit code, and whether the expired lease killed it.  The group is only signalled while the program is not
    reaped, so its number cannot have passed to another."""
    over = False
    code: int | None = None
    asking: stopping.Stopping | None = None
    looked_at = failed_at = 0.0
    while True:
        received = signal.sigtimedwait(WATCHED, LOOK_S if asking is None else STOPPING_S)
        while (ended := reap(block=False)) is not None:
            if ended[0] == pid:
                code = ended[1]
                if asking is None:
                    return code, over and code == 128 + signal.SIGKILL
            if ended[0] == 0:
                return 255 if code is None else code, over and code == 128 + signal.SIGKILL
        kill = received is not None and received.si_signo == signal.SIGUSR1
        if received is not None and received.si_signo not in (signal.SIGCHLD, signal.SIGUSR1) and asking is None:
            asking = stopping.Stopping(read_request())
        if (now := time.monotonic()) >= looked_at + LOOK_S or (received is not None and asking is None):
            looked_at = now
            look_at_log(times, cap)
            deadline = lease.until(LEASE, deadline)
            over = over or (deadline is not None and deadline <= lease.now_ns())
            kill = kill or over or removed()
        if kill and code is not None:
            return code, over  # the caller kills the rest
        if kill:
            signalled(os.killpg, pid, signal.SIGKILL)
            signalled(os.kill, pid, signal.SIGKILL)  # it may have left its group
            asking = None  # what does not belong to the group is killed once the program has gone
        elif asking is not None and not asking.waits(now, stopping.alive):
            try:
                stopping.deliver(asking.step(now, stopping.look(os.getpid()), pid), note)
            except OSError as failure:  # such as no free file descriptor on the machine: it is tried again
                if now >= failed_at + LOOK_S:
                    failed_at = now
                    note(f"the processes can't be listed: {failure}")


def read_request() -> str:
    """Return how the program is asked to stop."""
    try:
        with open(stopping.FILE) as file:
            return file.read()
    except (OSError, ValueError):
        return stopping.DEFAULT


def removed() -> bool:
    """Return whether the container's folder is gone.  Other errors (for example a failing disk) do not count."""
    try:
        os.stat("lock")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def sweep() -> None:
    """Kill everything left.  Grandchildren become children as their parents die, so the last child is the last of all."""
    while (ended := reap(block=False)) != (0, 0):
        if ended is None:
            try:
                remaining = children()
            except OSError:  # such as no free file descriptor on the machine
                time.sleep(STOPPING_S)
                continue
            for child in remaining:
                signalled(os.kill, child, signal.SIGKILL)
            reap(block=True)


def report_outcome(report: int, outcome: bytes) -> None:
    """Report the outcome of the start.  The agent that waits for it may have died, which must not end the supervisor."""
    try:
        os.write(report, outcome)
    except OSError as failure:
        note(f"nobody hears that it is {outcome.decode()}: {failure}")


def supervise(report: int) -> None:
    lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as held:
        if held.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        report_outcome(report, b"busy")
        return
    if os.path.exists("started"):
        report_outcome(report, b"busy")
        return
    with open("launch", "rb") as file:
        fields = [os.fsdecode(field) for field in file.read().split(b"\0")]
    workdir, cap, count = fields[0], int(fields[1]), int(fields[2])
    command = fields[3 : 3 + count]
    environment = dict(field.split("=", 1) for field in fields[3 + count :] if field)
    if not prctl(PR_SET_CHILD_SUBREAPER, 1):
        note("cannot become a subreaper: a child in a session of its own may outlive its container")
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    deadline = lease.until(LEASE, None)
    if deadline is not None and deadline <= lease.now_ns():
        report_outcome(report, b"over")
        return
    times = Times()
    times.note(0)
    pid, exited, failure = start(command, workdir, environment, read_mounts())
    if failure:
        write_record("refused", failure)
        report_outcome(report, b"refused")
        return
    report_outcome(report, b"started")
    os.close(report)
    code, over = watch(pid, times, cap, deadline)
    sweep()
    look_at_log(times)
    try:
        write_reserved(*exited, "exited", f"{code} {time.time_ns():019d}{' lease' if over else ''}")
    except FileNotFoundError:
        note("the folder was removed: nobody learns how it ended")


def prctl(option: int, value: int) -> bool:
    """Return whether it took effect."""
    done: bool = ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
    return done


def guard(supervisor: int) -> None:
    """The guardian's part: when the supervisor has ended, surviving processes of its container are reparented here and
    killed.  Signals are for the supervisor."""
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(ignored, signal.SIG_IGN)
    while (ended := reap(block=True)) is not None and ended[0] not in (supervisor, 0):
        pass
    sweep()


def main() -> None:
    os.chdir(sys.argv[1])
    if os.fork():
        os._exit(0)  # the caller waits for stdout to close, not for us: only init has to reap the supervisor
    os.setsid()
    report = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(os.open("supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
    os.dup2(1, 2)
    if not prctl(PR_SET_CHILD_SUBREAPER, 1):
        note("cannot become a subreaper: what the program has started may outlive a supervisor that is killed")
    supervisor = os.fork()
    if supervisor:
        os.close(report)
        guard(supervisor)
    else:
        supervise(report)


if __name__ == "__main__":
    main()
