"""How `make chaos` interprets its observations: schedules, records from inside, recovery; and that it leaves nothing
behind."""

from __future__ import annotations

import asyncio
import os
import struct
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compose.apps.worker.presence import FOLDER, Mark
from events.log.records import Record
from events.spec import check_spec
from tests.lab.chaos.chaos import Wanted, bench_chaos
from tests.lab.chaos.faults import KINDS, Injected, schedule
from tests.lab.chaos.log import Told
from tests.lab.chaos.record import Stall, Stay, doubled, stalls, stays, steps
from tests.lab.chaos.recovery import Recovery, recoveries, takeovers
from tests.lab.chaos.replicas import differences, stored
from tests.lab.chaos.work import Probe, jobs
from tests.lab.machines.dockerd import why_not
from tests.lab.machines.engines import unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

S = 1_000_000_000


def stay(generation: int, slot: int, begin: float, end: float, step: int = 0, every: float = 0.5) -> Stay:
    """Return the record of a process that makes a step between any two marks."""
    count = round((end - begin) / every)
    marks = [Mark(round((begin + i * every) * S), step + i) for i in range(count + 1)]
    return Stay(generation, slot, marks)


def test_a_seed_gives_one_schedule_and_each_turn_has_every_kind() -> None:
    turn = len(KINDS)
    first = list(islice(schedule(7), 3 * turn))
    assert first == list(islice(schedule(7), 3 * turn))
    assert first != list(islice(schedule(8), 3 * turn))
    for number in range(3):
        assert {fault.kind for fault in first[number * turn : (number + 1) * turn]} == set(KINDS)
    assert any(fault.rest_s < 0 for fault in first)
    assert {fault.kind for fault in islice(schedule(7, ["machine_cut"]), 3)} == {"machine_cut"}


def test_jobs_are_specs_that_can_be_submitted_and_all_kinds_come() -> None:
    some = list(islice(jobs(1), 20))
    for job in some:
        check_spec(job.spec)
    assert len({job.spec["name"] for job in some}) == 20
    assert {job.fate for job in some} == {"completed", "failed"}


@pytest.mark.parametrize(
    ("of_app", "pairs"),
    [
        ([stay(1, 0, 0, 5), stay(1, 1, 0, 5), stay(2, 0, 5.1, 9)], 0),
        ([stay(1, 0, 0, 5), stay(1, 1, 0, 5.3), stay(2, 0, 5.1, 9)], 1),
        ([stay(1, 0, 0, 5), stay(1, 0, 4, 6)], 1),
        ([stay(1, 0, 0, 3), stay(1, 0, 4, 6)], 0),
        ([stay(2, 0, 0, 3), stay(1, 0, 4, 6)], 1),
        ([], 0),
    ],
)
def test_processes_of_two_generations_at_once_are_found(of_app: Sequence[Stay], pairs: int) -> None:
    assert len(doubled(of_app)) == pairs


def test_records_are_read_from_an_apps_folder(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "2.0.1.ab").write_bytes(b"30 5\n40 6\n5")
    (folder / "1.1.2.cd").write_bytes(b"10 0\n")
    (folder / "1.0.2.ef").write_bytes(b"")
    assert stays(tmp_path) == [Stay(1, 1, [Mark(10, 0)]), Stay(2, 0, [Mark(30, 5), Mark(40, 6)])]
    assert stays(tmp_path / "none") == []


def test_pauses_in_training_are_found_from_the_steps_alone() -> None:
    waits = Stay(2, 0, [Mark(round(t * S), 10) for t in (6, 7, 8)] + [Mark(9 * S, 11), Mark(10 * S, 12)])
    moments = steps([stay(1, 0, 0, 5), waits])
    assert stalls(moments, 2 * S) == [Stall(5 * S, 9 * S)]


def test_recovery_is_the_later_of_answers_and_training() -> None:
    told = Told(answered={"p1": 3 * S, "p2": 12 * S}, elected=[13 * S, 14 * S])
    apps = {"a": [stay(1, 0, 0, 10, every=0.25), stay(2, 0, 16, 20, every=0.25)]}
    faults = [
        Injected("container_removed", 10 * S, "x", 10 * S),
        Injected("leader_killed", round(11.5 * S), "y", 12 * S),
    ]
    probes = [Probe("p1", S), Probe("p2", round(11.6 * S))]
    first, second = recoveries(faults, told, apps, probes)
    # Training stops at 10 s and continues at 16 s, with a step a quarter of a second later.
    assert first == Recovery("container_removed", 2.0, 6.25)
    assert second == Recovery("leader_killed", 0.5, 0.0)
    assert (first.seconds, second.seconds) == (6.25, 0.5)
    assert takeovers(faults, told) == [1.5]


def test_a_decided_adjustment_or_wait_is_not_attributed_to_a_fault() -> None:
    apps = {"a": [stay(1, 0, 0, 10), stay(2, 0, 16, 20)]}
    fault, probes = Injected("agent_killed", 9 * S, "x", 9 * S), [Probe("p", 9 * S)]
    answered = {"p": 9 * S}
    assert recoveries([fault], Told(answered=answered, resized={"a": [9 * S]}), apps, probes)[0].seconds == 0.0
    assert recoveries([fault], Told(answered=answered, resized={"a": [11 * S]}), apps, probes)[0].seconds == 7.5
    assert recoveries([fault], Told(answered=answered, waits={"a": [12 * S]}), apps, probes)[0].seconds == 3.0
    assert recoveries([fault], Told(), apps, probes)[0].seconds is None
    long_ago = Injected("agent_killed", -20 * S, "x", -12 * S)
    assert recoveries([long_ago], Told(answered=answered), apps, probes)[0].training_s == 0.0


def block(*records: tuple[int, bytes, bytes], deleted: int = 0) -> bytes:
    """Return a block as nats-server writes it: sequence, headers, body."""
    data = b""
    for seq, headers, body in records:
        told = len(headers).to_bytes(4, "little") + headers if headers else b""
        length = 22 + 3 + len(told) + len(body) + 8
        flags, gone = (1 << 31 if headers else 0), (1 << 63 if seq == deleted else 0)
        data += struct.pack("<IQqH", length | flags, seq | gone, 7 * seq, 3) + b"a.b" + told + body + b"checksum"
    return data


def test_a_servers_copy_of_the_log_is_read_from_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "msgs"
    folder.mkdir()
    headers = b"NATS/1.0\r\nNats-Msg-Id: x1\r\n\r\n"
    (folder / "2.blk").write_bytes(block((2, headers, b"two"), (3, b"", b"three")))
    (folder / "1.blk").write_bytes(block((1, b"", b"")))
    log = [Record(1, 7, "a.b", b""), Record(2, 14, "a.b", b"two", "x1"), Record(3, 21, "a.b", b"three")]
    assert stored(tmp_path) == ({record.seq: record for record in log}, "")
    assert differences("s0", stored(tmp_path), log) == []
    assert differences("s0", stored(tmp_path), [*log, Record(4, 28, "a.b", b"")]) == [
        "s0: record 4 is not in its copy of the log"
    ]
    (folder / "2.blk").write_bytes(block((2, headers, b"tvo"), (3, b"", b"three"), deleted=3))
    assert differences("s0", stored(tmp_path), log) == [
        "s0: record 2 is another one in its copy of the log",
        "s0: record 3 is not in its copy of the log",
    ]
    for broken in (b"cmp and more", b"\0" * 40, block((2, b"", b"two"))[:-1], block((2, b"", b"two"))[:9]):
        (folder / "2.blk").write_bytes(broken)
        assert differences("s0", stored(tmp_path), log)[0].startswith("s0: its copy of the log can't be read: 2.blk: ")


@pytest.mark.soak
@pytest.mark.cluster
@pytest.mark.docker
@pytest.mark.nats
@pytest.mark.slow
async def test_an_interrupted_run_leaves_nothing(docker_archive: Path) -> None:
    if reason := why_not():
        unavailable(reason)
    up = asyncio.Event()
    bench = asyncio.create_task(
        bench_chaos(Wanted(attacked_s=60.0), tell=lambda text: up.set() if "masters" in text else None)
    )
    waiting = asyncio.create_task(up.wait())
    await asyncio.wait([bench, waiting], return_when=asyncio.FIRST_COMPLETED)
    made = set(Path("/run/netns").glob(f"dorm-lab-{os.getpid()}-*"))  # Not those of tests beside this one.
    assert len(made) >= 5
    bench.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench
    assert not [path for path in made if path.exists()]
