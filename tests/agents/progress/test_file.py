"""Reading progress files: at a limited rate, in pieces, each line once, whatever kind of file it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agents.progress import LONGEST_LINE, LONGEST_READ, MOST_BEHIND, Logged, ProgressFile
from agents.runtime.interface import Key
from events.kinds import AppCheckpointed, AppProgressed
from tests.agents.progress.files import said, write

if TYPE_CHECKING:
    from pathlib import Path


def test_only_the_latest_progress_of_an_interval_is_published(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 5.0)
    assert said(file, 0) == []
    write(path, '{"step": 1}\n{"step": 2, "loss": 0.5, "samples_per_s": 10}\n')
    (fact,) = file.read(0)
    assert fact == AppProgressed(id="AppProgressed.58", app="app", generation=1, step=2, loss=0.5, samples_per_s=10.0)
    write(path, '{"step": 3}\n')
    assert file.read(4) == []
    assert said(file, 5) == [("Progressed", 3)]


def test_the_latest_checkpoint_is_published_after_its_progress(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 1000.0)
    write(path, '{"step": 1}\n')
    assert said(file, 0) == [("Progressed", 1)]
    write(path, '{"step": 5}\n{"checkpoint": 5}\n{"step": 7}\n{"checkpoint": 7}\n')
    assert said(file, 1) == [("Progressed", 7), ("Checkpointed", 7)]
    write(path, '{"step": 9}\n{"checkpoint": 8}\n')
    assert said(file, 2) == []
    assert said(file, 3, final=True) == [("Checkpointed", 8), ("Progressed", 9)]
    assert said(file, 4, final=True) == []


def test_each_fact_has_the_end_of_its_line_in_its_id(path: Path) -> None:
    first, second = '{"step": 0}\n', '{"checkpoint": 9007199254740992}\n'
    write(path, first + second)
    assert ProgressFile(Key("app", 3, 1), path, 0.0).read(0) == [
        AppProgressed(id=f"AppProgressed.{len(first)}", app="app", generation=3, step=0),
        AppCheckpointed(id=f"AppCheckpointed.{len(first + second)}", app="app", generation=3, step=2**53),
    ]


def test_facts_on_the_log_are_not_published_again(path: Path) -> None:
    lines = ['{"step": 1}\n', '{"checkpoint": 1}\n', '{"step": 2}\n', '{"checkpoint": 2}\n', '{"step": 3}\n']
    ends = [len("".join(lines[: count + 1])) for count in range(len(lines))]
    write(path, "".join(lines))
    logged = Logged(checkpointed=ends[1], progressed=ends[2])
    assert said(ProgressFile(Key("app", 1, 0), path, 0.0, logged), 0) == [("Checkpointed", 2), ("Progressed", 3)]
    # The log may have a later line of one kind than of the other.
    behind = Logged(checkpointed=ends[3], progressed=ends[0])
    assert said(ProgressFile(Key("app", 1, 0), path, 0.0, behind), 0) == [("Progressed", 3)]
    all_of_it = Logged(checkpointed=ends[3], progressed=ends[4])
    assert said(ProgressFile(Key("app", 1, 0), path, 0.0, all_of_it), 0, final=True) == []


@pytest.mark.timeout(20)
def test_neither_a_link_nor_a_pipe_in_its_place_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"checkpoint": 7}\n')
    (tmp_path / "link").symlink_to("secret")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        assert said(ProgressFile(Key("app", 1, 0), tmp_path / name, 0.0), 0, final=True) == []


def test_half_a_line_waits_for_its_end(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, '{"checkpo')
    assert said(file, 0) == []
    write(path, 'int": 4}')
    assert said(file, 1) == []
    write(path, "\n")
    assert said(file, 2) == [("Checkpointed", 4)]


def test_a_flood_is_read_in_pieces_and_the_last_read_takes_the_rest(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 1000.0)
    line = '{"step": 1, "pad": "' + "x" * 1000 + '"}\n'
    write(path, line * (3 * LONGEST_READ // len(line)) + '{"checkpoint": 8}\n')
    assert said(file, 0) == [("Progressed", 1)]
    assert ("Checkpointed", 8) in said(file, 1, final=True)


def test_a_line_without_end_fills_no_memory(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, "x" * (4 * LONGEST_READ))
    for now in range(6):
        assert said(file, now) == []
        assert len(file._rest) <= LONGEST_READ
    write(path, '\n{"checkpoint": 1}\n')
    assert said(file, 9) == [("Checkpointed", 1)]


def test_many_checkpoints_become_few_facts_including_the_last_one(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 5.0)
    facts = []
    for second in range(20):
        write(path, "".join(f'{{"checkpoint": {second * 1000 + number}}}\n' for number in range(1000)))
        facts += said(file, second)
    assert len(facts) == 4, "one in five seconds"
    assert said(file, 20, final=True) == [("Checkpointed", 19_999)]


def test_a_sparse_file_of_100_gb_is_read_from_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, '{"checkpoint": 1}\n')
    assert said(file, 0) == [("Checkpointed", 1)]
    with path.open("r+b") as sparse:
        sparse.truncate(100 * 10**9)
    write(path, '\n{"checkpoint": 2}\n')
    read = 0
    take = ProgressFile._take

    def counted(self: ProgressFile, chunk: bytes) -> None:
        nonlocal read
        read += len(chunk)
        take(self, chunk)

    monkeypatch.setattr(ProgressFile, "_take", counted)
    assert said(file, 1, final=True) == [("Checkpointed", 2)]
    assert read <= MOST_BEHIND + LONGEST_READ
    assert file.skipped > 99 * 10**9
    write(path, '{"checkpoint": 3}\n')
    assert said(file, 2) == [("Checkpointed", 3)]


def test_lines_before_a_hole_are_read(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, '{"checkpoint": 1}\n')
    with path.open("r+b") as sparse:
        sparse.truncate(100 * 10**9)
    assert said(file, 0) == [("Checkpointed", 1)]


def test_a_look_reads_no_more_than_its_bound(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, "\n" * (2 * LONGEST_READ) + '{"checkpoint": 1}\n')
    assert said(file, 0) == []
    assert file._offset == LONGEST_READ
    assert said(file, 1) == []
    assert said(file, 2) == [("Checkpointed", 1)]


def test_the_rest_of_an_overlong_line_is_skipped(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, "x" * (LONGEST_LINE + 1))
    assert said(file, 0) == []
    write(path, '{"checkpoint": 9}\n{"checkpoint": 1}\n')
    assert said(file, 1) == [("Checkpointed", 1)]
    assert file.skipped > LONGEST_LINE


def test_a_shortened_file_is_read_from_its_end(path: Path) -> None:
    """Places grow on, so that no id comes twice."""
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, '{"checkpoint": 1}\n{"checkpoint": 2}\n')
    (first,) = file.read(0)
    path.write_text("")
    assert said(file, 1) == []
    write(path, '{"checkpoint": 3}\n')
    (second,) = file.read(2)
    assert isinstance(second, AppCheckpointed)
    assert second.step == 3
    assert int(second.id.rpartition(".")[2]) > int(first.id.rpartition(".")[2])
    again = ProgressFile(Key("app", 1, 0), path, 0.0, Logged(checkpointed=int(second.id.rpartition(".")[2])))
    assert said(again, 0) == []


def test_successive_agents_report_a_line_once(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, '{"step": 1}\n{"checkpoint": 1}\n{"step": 2}\n')
    logged = Logged()
    for fact in file.read(0):
        place = int(fact.id.rpartition(".")[2])
        if isinstance(fact, AppProgressed):
            logged.progressed = place
        else:
            logged.checkpointed = place
    assert said(ProgressFile(Key("app", 1, 0), path, 0.0, logged), 0, final=True) == []


@pytest.mark.parametrize("what", ["pipe", "link", "folder", "nothing", "device"])
def test_a_path_that_is_not_a_file_gives_nothing_and_blocks_no_reader(path: Path, what: str) -> None:
    if what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        (path.parent / "other").write_text('{"checkpoint": 1}\n')
        path.symlink_to(path.parent / "other")
    elif what == "folder":
        path.mkdir()
    elif what == "device":
        path.symlink_to("/dev/zero")
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    assert said(file, 0, final=True) == []


def test_the_longest_line_is_read(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    words = '{"checkpoint": 1}'
    write(path, words + " " * (LONGEST_LINE - len(words) - 1))
    assert said(file, 0) == []
    write(path, "\n")
    assert said(file, 1) == [("Checkpointed", 1)]
