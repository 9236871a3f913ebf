"""Who is asked to stop, and when, on made-up processes; `stopping_conformance` stops real ones."""

from __future__ import annotations

import errno
import os
import signal
from typing import IO, TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import lease
from agents.runtime import stopping
from agents.runtime.stopping import SETTLE_S, SIGNALS, Process, Stopping, alive, deliver, look
from events.spec.spec import SIGNALS as OF_SPECS

if TYPE_CHECKING:
    from pathlib import Path

    from agents.runtime.stopping import Signal

TERM, CONT, STOP, USR1 = (int(getattr(signal, f"SIG{name}")) for name in ("TERM", "CONT", "STOP", "USR1"))
MAIN = 10


def mask(*names: str) -> int:
    return sum(1 << (getattr(signal, f"SIG{name}") - 1) for name in names)


def table(*processes: Process) -> dict[int, Process]:
    return {one.pid: one for one in processes}


def program(pid: int, parent: int, *handled: str, state: str = "S", reads: tuple[str, ...] = ()) -> Process:
    return Process(pid, parent, "0", state, handled=mask(*handled), reads=reads)


def shell(
    pid: int, parent: int, *handled: str, state: str = "S", reads: tuple[str, ...] = (), writes: tuple[str, ...] = ()
) -> Process:
    return Process(pid, parent, "0", state, handled=mask(*handled), shell=True, reads=reads, writes=writes)


def got(signals: list[Signal]) -> list[tuple[int, int]]:
    return [(pid, number) for (pid, _), number in signals]


def test_a_spec_allows_the_signals_that_runtimes_know() -> None:
    assert SIGNALS == OF_SPECS


def test_a_worker_of_a_data_loader_is_not_asked_below_a_program_without_a_handler() -> None:
    loader = program(12, 11, "TERM", "BUS", "FPE", "SEGV")
    trainer = program(13, 11, "TERM", "BUS", "FPE", "SEGV", "ILL", "ABRT")  # with faulthandler
    assert got(Stopping().step(0, table(shell(MAIN, 1), program(11, MAIN), loader, trainer), MAIN)) == [
        (MAIN, STOP),
        (13, TERM),
    ]


def test_if_only_loaders_handle_it_everything_gets_it_and_parents_first() -> None:
    loaders = [program(pid, 11, "TERM", "BUS", "FPE", "SEGV") for pid in (12, 13)]
    signals = got(Stopping().step(0, table(*loaders, program(11, MAIN), shell(MAIN, 1)), MAIN))
    assert signals == [(MAIN, TERM), (11, TERM), (12, TERM), (13, TERM)]


def test_a_program_that_a_launcher_starts_again_is_asked_too() -> None:
    stop = Stopping()
    launcher, first = program(MAIN, 1), program(11, MAIN, "TERM")
    other = program(12, MAIN, "TERM")
    assert got(stop.step(0, table(launcher, first, other), MAIN)) == [(11, TERM), (12, TERM)]
    again = program(13, MAIN, "TERM")
    assert stop.waits(0.3, lambda _: True)
    assert not stop.waits(0.6, lambda _: True)
    assert got(stop.step(0.6, table(launcher, other, again), MAIN)) == [(13, TERM)]


def first(stop: Stopping, *processes: Process) -> list[tuple[int, int]]:
    """Return the signals of the first two looks: shells with a trap that would be asked are held in between."""
    held = got(stop.step(0, table(*processes), MAIN))
    assert {number for _, number in held} == {STOP}
    assert not stop.waits(0, lambda _: True)
    for one in processes:
        one.state = "T" if (one.pid, STOP) in held else one.state
    return got(stop.step(0.01, table(*processes), MAIN))


def test_what_a_shell_starts_during_the_look_is_no_command_of_its_trap() -> None:
    """The trap would wait for it until the grace time is over."""
    stop = Stopping()
    assert got(stop.step(0, table(shell(MAIN, 1, "TERM")), MAIN)) == [(MAIN, STOP)]
    command = program(11, MAIN)
    signals = got(stop.step(0.01, table(shell(MAIN, 1, "TERM", state="T"), command), MAIN))
    assert signals == [(MAIN, TERM), (MAIN, CONT), (11, TERM)]
    # A program that saves is asked instead, and the shell is held for it; not at the other end of its pipe.
    for pipes, more in (((), []), (("pipe:[1]",), [(MAIN, CONT)])):
        stop = Stopping()
        stop.step(0, table(shell(MAIN, 1, "TERM", reads=pipes)), MAIN)
        saving = program(11, MAIN, "TERM")
        held = shell(MAIN, 1, "TERM", state="T", reads=pipes)
        assert got(stop.step(0.01, table(held, saving), MAIN)) == [*more, (11, TERM)]
    # On a busy machine a process stops only a while after its signal; one that never shows it is asked all the same.
    for stopped, now in (("T", 0.02), ("R", 1.1)):
        stop = Stopping()
        stop.step(0, table(shell(MAIN, 1, "TERM")), MAIN)
        assert stop.step(0.01, table(shell(MAIN, 1, "TERM", state="R")), MAIN) == []
        signals = got(stop.step(now, table(shell(MAIN, 1, "TERM", state=stopped), command), MAIN))
        assert signals == [(MAIN, TERM), (MAIN, CONT), (11, TERM)]
    # It ends meanwhile.
    stop = Stopping()
    stop.step(0, table(shell(MAIN, 1, "TERM")), MAIN)
    assert got(stop.step(0.01, table(program(11, 1)), MAIN)) == [(11, TERM)]


def test_what_an_asked_program_starts_is_its_own() -> None:
    stop = Stopping()
    asked, command = shell(MAIN, 1, "TERM"), program(11, MAIN)
    job = Process(14, MAIN, "0", background=True)
    assert first(stop, asked, command, job) == [(MAIN, TERM), (MAIN, CONT), (11, TERM)]
    asked = shell(MAIN, 1, "TERM")
    uploading = program(12, MAIN, "TERM")
    assert stop.step(1, table(asked, uploading), MAIN) == []
    # Its trap has ended and left the upload behind.
    assert got(stop.step(2, table(program(12, 1, "TERM")), MAIN)) == [(12, TERM)]


def test_what_a_shell_with_a_trap_waits_for_ends_with_it() -> None:
    stop = Stopping()
    processes = shell(MAIN, 1, "TERM"), program(11, MAIN), program(12, 11), Process(13, MAIN, "0", background=True)
    assert first(stop, *processes) == [(MAIN, TERM), (MAIN, CONT), (11, TERM), (12, TERM)]
    assert stop.step(1, table(*processes, program(14, MAIN)), MAIN) == []  # of its trap
    assert got(Stopping("SIGUSR1 main 60").step(0, table(shell(MAIN, 1, "USR1"), program(11, MAIN)), MAIN)) == [
        (MAIN, USR1)
    ]


def test_a_shell_that_was_about_to_become_its_command_is_asked_in_vain() -> None:
    """Between fork(2) and execve(2) it still has the handlers of the shell that started it."""
    stop = Stopping()
    shells = shell(MAIN, 1, "TERM"), shell(11, MAIN, "TERM")
    assert first(stop, *shells) == [(MAIN, STOP), (11, TERM), (11, CONT)]
    held, command = shell(MAIN, 1, "TERM", state="T"), program(11, MAIN)
    assert got(stop.step(1, table(held, command), MAIN)) == [(MAIN, TERM), (MAIN, CONT), (11, TERM)]
    # While another program saves, the shell stays held.
    stop = Stopping()
    saving = program(12, MAIN, "TERM")
    assert (11, TERM) in first(stop, shell(MAIN, 1, "TERM"), shell(11, MAIN, "TERM"), saving)
    assert stop.step(1, table(held, command, saving), MAIN) == []
    assert got(stop.step(2, table(held, command), MAIN)) == [(MAIN, TERM), (MAIN, CONT), (11, TERM)]


def test_a_command_of_a_trap_is_left_alone_after_the_end_of_the_program() -> None:
    stop = Stopping()
    held = shell(MAIN, 1, "TERM")
    assert got(stop.step(0, table(held, program(11, MAIN, "TERM")), MAIN)) == [(MAIN, STOP), (11, TERM)]
    held = shell(MAIN, 1, "TERM", state="T")
    assert got(stop.step(1, table(held), MAIN)) == [(MAIN, TERM), (MAIN, CONT)]
    assert stop.step(9, table(held, program(12, MAIN), program(13, 12)), MAIN) == []


def test_a_reader_of_a_pipe_gets_a_moment_to_read_its_end() -> None:
    stop = Stopping()
    outer, writer, reader = shell(MAIN, 1), program(11, MAIN, "TERM"), program(12, MAIN, reads=("pipe:[1]",))
    assert got(stop.step(0, table(outer, writer, reader), MAIN)) == [(MAIN, STOP), (11, TERM)]
    assert got(stop.step(1, table(shell(MAIN, 1, state="T"), reader), MAIN)) == [(MAIN, TERM), (MAIN, CONT)]
    orphan = program(12, 1, reads=("pipe:[1]",))
    assert stop.step(1 + SETTLE_S / 2, table(orphan), MAIN) == []
    assert got(stop.step(1 + SETTLE_S, table(orphan), MAIN)) == [(12, TERM)]


@pytest.mark.parametrize(
    "beside",
    [
        shell(MAIN, 1, reads=("pipe:[1]",)),  # $(train), or train | while read
        shell(MAIN, 1, writes=("pipe:[2]",)),  # while true; do echo; done | train
    ],
)
def test_a_shell_at_the_other_end_of_a_pipe_is_not_held(beside: Process) -> None:
    training = Process(11, MAIN, "0", handled=mask("TERM"), reads=("pipe:[2]",), writes=("pipe:[1]",))
    assert got(Stopping().step(0, table(beside, training), MAIN)) == [(11, TERM)]


def test_a_signal_of_its_own_then_sigterm() -> None:
    stop = Stopping("SIGUSR1 main 60")
    both = program(MAIN, 1, "USR1", "TERM")
    assert got(stop.step(0, table(both), MAIN)) == [(MAIN, USR1)]
    assert stop.step(59, table(both), MAIN) == []
    assert not stop.waits(60, lambda _: True)
    assert got(stop.step(60, table(both), MAIN)) == [(MAIN, TERM)]
    assert stop.step(200, table(both), MAIN) == []


def test_a_shell_that_is_held_goes_on_at_the_end_also_if_it_did_not_show_that_it_stopped() -> None:
    stop = Stopping()
    assert got(stop.step(0, table(shell(MAIN, 1), program(11, MAIN, "TERM")), MAIN)) == [(MAIN, STOP), (11, TERM)]
    assert got(stop.step(1, table(shell(MAIN, 1, state="R")), MAIN)) == [(MAIN, TERM), (MAIN, CONT)]


def test_a_shell_that_was_held_goes_on_when_it_is_asked_itself() -> None:
    """Its own program has ended, and another one has not: it would wait for a signal that it cannot take."""
    stop = Stopping()
    trainer, evaluator = program(11, MAIN, "TERM"), program(13, 12, "TERM")
    signals = got(stop.step(0, table(shell(MAIN, 1), trainer, shell(12, MAIN, "TERM"), evaluator), MAIN))
    assert signals == [(MAIN, STOP), (12, STOP), (11, TERM), (13, TERM)]
    held = shell(12, MAIN, "TERM", state="T")
    inner = shell(14, 12, state="T")
    signals = got(stop.step(1, table(shell(MAIN, 1, state="T"), trainer, held, inner), MAIN))
    assert signals == [(12, TERM), (12, CONT), (14, TERM), (14, CONT)]


def test_who_has_ended_is_forgotten() -> None:
    """A wrapper that starts programs all grace time long must not fill the agent's memory."""
    stop = Stopping()
    for now in range(50):
        both = program(11 + now, MAIN, "TERM"), program(12 + now, MAIN, "TERM")
        assert (12 + now, TERM) in got(stop.step(now, table(program(MAIN, 1), *both), MAIN))
    assert len(stop.signalled) <= 4
    assert stop.step(50, {}, MAIN) == []  # A look may miss one whose parent ends meanwhile.
    assert (both[1].pid, TERM) not in got(stop.step(51, table(program(MAIN, 1), both[1]), MAIN))


class _Tree:
    """Made-up processes that obey: a shell with a trap once it waits for nothing, a program that saves after a while."""

    def __init__(self, kinds: list[tuple[str, int]]) -> None:
        self.kind: dict[int, str] = {}
        self.parent: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.told: list[int] = []
        self.left: dict[int, int] = {}
        for kind, parent in kinds:
            pid = MAIN + len(self.kind)
            self.kind[pid], self.parent[pid] = kind, MAIN + parent % len(self.kind) if self.kind else 1

    def table(self) -> dict[int, Process]:
        return {
            pid: Process(
                pid,
                self.parent[pid],
                "0",
                "T" if pid in self.stopped else "S",
                handled=mask("TERM") if kind in ("trap", "saves") else 0,
                shell=kind in ("shell", "trap"),
            )
            for pid, kind in self.kind.items()
        }

    def send(self, pid: int, number: int) -> None:
        if number == TERM:
            assert pid not in self.told, "asked twice"
            self.told.append(pid)
            self.left[pid] = pid % 7
        elif number == STOP:
            self.stopped.add(pid)
        else:
            self.stopped.discard(pid)

    def go_on(self) -> None:
        for pid in [one for one in self.left if one not in self.stopped]:
            waits = self.kind[pid] == "trap" and pid in self.parent.values()
            self.left[pid] -= not waits
            if self.left[pid] < 0 or (self.kind[pid] in ("shell", "program")):
                del self.kind[pid], self.left[pid], self.parent[pid]
                self.parent = {one: 1 if above == pid else above for one, above in self.parent.items()}


@given(
    st.lists(
        st.tuples(st.sampled_from(["shell", "trap", "program", "saves"]), st.integers(0, 9)), min_size=1, max_size=9
    )
)
def test_whoever_obeys_ends_before_the_grace_time_does_and_is_asked_once(kinds: list[tuple[str, int]]) -> None:
    tree, stop = _Tree(kinds), Stopping()
    for now in range(200):
        for (pid, _), number in stop.step(now, tree.table(), MAIN):
            tree.send(pid, number)
        tree.go_on()
        if not tree.kind:
            return
    pytest.fail(f"left {tree.kind}, stopped {tree.stopped}")


def test_a_hostile_tree_is_neither_too_deep_nor_circular() -> None:
    depth = 4096
    chain = [program(MAIN + one, MAIN + one - 1) for one in range(1, depth)]
    last = program(MAIN + depth, MAIN + depth - 1, "TERM")
    assert got(Stopping().step(0, table(program(MAIN, 1), *chain, last), MAIN)) == [(MAIN + depth, TERM)]
    many = Stopping()
    assert len(many.step(0, table(program(MAIN, 1), *chain), MAIN)) == depth
    assert many.waits(1.5, lambda _: True)  # Each look takes a while.
    assert not many.waits(2.5, lambda _: True)
    circle = table(program(21, 22), program(22, 21))  # read while pids were given again
    stop = Stopping()
    for now in range(3):
        stop.step(now, circle, 21)


def in_proc(proc: Path, pid: int, parent: int, state: str = "S", *, exe: str = "/bin/python3", pipes: int = 0) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fdinfo").mkdir()
    (folder / "stat").write_text(f"{pid} (a) b) {state} {parent} {'0 ' * 17}7 0")
    (folder / "status").write_text(f"SigCgt:\t{mask('TERM'):016x}\n")
    (folder / "exe").symlink_to(exe)
    for one in range(pipes):
        (folder / "fd" / str(one)).symlink_to(f"pipe:[{one}]")
        (folder / "fdinfo" / str(one)).write_text("flags:\t0100000\n")


def test_no_container_decides_how_long_a_look_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "MOST_PROCESSES", 2)
    in_proc(tmp_path, 10, 1)
    in_proc(tmp_path, 11, 10, "Z")
    in_proc(tmp_path, 12, 10, exe="/bin/bash", pipes=3)
    in_proc(tmp_path, 13, 10, exe="/app/bash", pipes=stopping.MOST_DESCRIPTORS + 1)
    in_proc(tmp_path, 14, 13)
    found = look(10, str(tmp_path))
    assert tuple(sorted(found[12].reads)) == ("pipe:[0]", "pipe:[1]", "pipe:[2]")
    assert found[13].reads == ("pipe:unknown",)
    assert [pid for pid, one in sorted(found.items()) if one.handles(TERM)] == [12, 13]
    assert found[14].id == (14, "7")


def test_a_process_whose_parent_ends_during_a_look_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_proc(tmp_path, 10, 1)
    in_proc(tmp_path, 12, 11)  # the parent has just gone
    stat = tmp_path / "12" / "stat"

    def opened(path: str, mode: str) -> IO[bytes]:
        file = open(path, mode)  # noqa: SIM115
        if path == str(stat):
            stat.rename(stat.with_name("before"))
            stat.write_text(stat.with_name("before").read_text().replace("S 11 ", "S 10 "))
        return file

    monkeypatch.setattr(stopping, "open", opened, raising=False)
    assert list(look(10, str(tmp_path))) == [12]


def test_signals_are_sent_where_nothing_gives_a_descriptor_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(os, "pidfd_open", refused)
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        signal.pause()
        os._exit(0)
    said: list[str] = []
    deliver([((child, "1"), int(signal.SIGKILL)), ((2**22 + 1, "1"), int(signal.SIGKILL))], said.append)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    deliver([((child, lease.start_time(child)), int(signal.SIGKILL))], said.append)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert said == []


def test_no_signal_reaches_a_process_that_got_a_number_again() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        start = next(one for one in look(os.getpid()).values() if one.pid == child).id[1]
        said: list[str] = []
        deliver([((child, "1"), int(signal.SIGKILL)), ((2**22 + 1, "1"), int(signal.SIGKILL))], said.append)
        assert alive((child, start))
        assert not alive((child, "1"))
        assert said == []
        deliver([((child, start), int(signal.SIGKILL))], said.append)
    finally:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
