"""A node takes nothing new while its disks, its processes, its engine or its operator's program say so."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents import fitness as module
from agents.fitness import (
    Fitness,
    Found,
    FoundFolder,
    HealthProgram,
    Room,
    Verdict,
    judge,
    look_at_machine,
    processes_left,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GIB = 2**30
WELL = FoundFolder(Room(50 * GIB, 100 * GIB), Room(5_000_000, 6_000_000), writable=True)
PLENTY = Room(30_000, 32_768)
PATHS = {"data": Path("/data"), "checkpoints": Path("/shared")}


def folder(free: int = 50 * GIB, inodes: int = 5_000_000, *, writable: bool = True) -> FoundFolder:
    return FoundFolder(Room(free, 100 * GIB), Room(inodes, 6_000_000), writable)


class Machine:
    """What a look finds; its engine has been silent for `silence_s`."""

    def __init__(self, program: HealthProgram | None = None, *, least_s: float = 0.0) -> None:
        self.folders = dict.fromkeys(PATHS, WELL)
        self.processes = PLENTY
        self.silence_s = 0.0
        self.fitness = Fitness(
            "n1", lambda: PATHS, lambda: self.silence_s, program=program, look=self.look, least_s=least_s
        )

    def look(self, folders: Mapping[str, Path], note: Callable[[str], None]) -> Found:
        return Found(dict(self.folders), self.processes)

    async def codes(self) -> list[str]:
        return [one.code for one in await self.fitness.reasons()]


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        (folder(0), "data_bytes", "full (0 B of 100 GiB are free)"),
        (folder(31 * 2**20), "data_bytes", "/data"),
        (folder(inodes=0), "data_inodes", "0 of 6,000,000 are free"),
        (folder(writable=False), "data_read_only", "can't be written"),
        (FoundFolder(Room(0, 4 * 2**20), Room(400, 400), writable=True), "data_bytes", "0 B of 4"),
    ],
)
def test_a_folder_without_room_is_a_reason(found: FoundFolder, code: str, words: str) -> None:
    made = judge("data", PATHS["data"], found, {})
    assert list(made) == [code]
    assert words in made[code]


@pytest.mark.parametrize(
    "found",
    [
        WELL,
        FoundFolder(Room(4 * 2**20, 4 * 2**20), Room(390, 400), writable=True),  # a small one that is empty
        FoundFolder(Room(0, 0), Room(0, 0), writable=True),  # one that counts neither
    ],
)
def test_a_folder_with_room_is_none(found: FoundFolder) -> None:
    assert judge("data", PATHS["data"], found, {}) == {}


async def test_a_reason_ends_only_with_twice_the_room() -> None:
    machine = Machine()
    assert await machine.codes() == []
    machine.folders["data"] = folder(10 * 2**20)
    machine.folders["checkpoints"] = folder(inodes=999)
    assert await machine.codes() == ["checkpoints_inodes", "data_bytes"]
    machine.folders["data"] = folder(40 * 2**20)
    machine.folders["checkpoints"] = folder(inodes=1999)
    assert await machine.codes() == ["checkpoints_inodes", "data_bytes"], "or each file more or less were on the log"
    machine.folders["data"] = folder(64 * 2**20)
    assert await machine.codes() == ["checkpoints_inodes"]


async def test_a_reason_stays_for_a_while_and_keeps_its_words() -> None:
    machine = Machine(least_s=1000.0)
    machine.folders["data"] = folder(10 * 2**20)
    (first,) = await machine.fitness.reasons()
    machine.folders["data"] = folder(11 * 2**20)
    assert await machine.fitness.reasons() == [first]
    machine.folders["data"] = WELL
    assert await machine.fitness.reasons() == [first]


async def test_too_few_processes_and_a_silent_engine_are_reasons() -> None:
    machine = Machine()
    machine.processes = Room(49, 32_768)
    assert await machine.codes() == ["processes"]
    machine.processes, machine.silence_s = PLENTY, 21.0
    assert await machine.codes() == ["engine_silent"]


async def test_a_file_system_that_hangs_is_a_reason_and_holds_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(module, "_SILENT_S", 0.05)
    hang, looks = threading.Event(), []

    def look(folders: Mapping[str, Path], note: Callable[[str], None]) -> Found:
        note("checkpoints")
        looks.append(1)
        hang.wait(20)
        return Found({}, PLENTY)

    fitness = Fitness("n1", lambda: PATHS, lambda: 0.0, look=look, least_s=0.0)
    try:
        async with asyncio.timeout(20):
            while not (found := await fitness.reasons()):
                pass
        assert [one.code for one in found] == ["checkpoints_silent"]
        assert "/shared does not answer" in found[0].text
        assert looks == [1]
    finally:
        hang.set()
    async with asyncio.timeout(20):
        while await fitness.reasons():
            pass


async def test_the_health_program_is_a_reason_until_it_has_answered_well(tmp_path: Path) -> None:
    program = HealthProgram(tmp_path / "program")
    machine = Machine(program, least_s=1000.0)
    assert await machine.codes() == ["health_program"], "nobody has asked it yet"
    program.verdict = Verdict(False, "GPU 3 is gone")
    (reason,) = await machine.fitness.reasons()
    assert reason.text == "its health program has not answered yet", "words change seldom"
    program.verdict = Verdict(True)
    assert await machine.codes() == []
    program.verdict = Verdict(False, "GPU 3 is gone")
    (reason,) = await machine.fitness.reasons()
    assert reason.text == "its health program says: GPU 3 is gone"


def test_a_look_at_this_machine(tmp_path: Path) -> None:
    names: list[str] = []
    found = look_at_machine({"data": tmp_path, "checkpoints": tmp_path / "missing"}, names.append)
    assert names == ["data", "checkpoints"]
    assert found.folders["data"].writable
    assert list(found.folders) == ["data"]
    assert judge("data", tmp_path, found.folders["data"], {}) == {}
    assert found.processes.total > 0


@pytest.mark.parametrize(("controllers", "base"), [("", ""), ("pids", "pids")])
def test_the_tightest_limit_of_processes_counts(tmp_path: Path, controllers: str, base: str) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    for name, text in (
        ("sys/kernel/threads-max", "1000\n"),
        ("sys/kernel/pid_max", "4096\n"),
        ("loadavg", "0.1 0.2 0.3 2/900 12\n"),
        ("self/cgroup", f"4:{controllers}:/slice/unit\n1:cpu:/\nodd"[: -4 if controllers else -14]),
    ):
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    for place, most, there in (("slice", "120", "110"), ("slice/unit", "max", "3")):
        (groups / base / place).mkdir(parents=True, exist_ok=True)
        (groups / base / place / "pids.max").write_text(most)
        (groups / base / place / "pids.current").write_text(there)
    assert processes_left(proc, groups) == Room(10, 120)
