"""The lines of a progress file: figures, requests for a size, messages of live apps, and invalid lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from agents.progress import MOST_TRIES, REQUEST_S, SKIPPED_S, Logged, ProgressFile
from agents.runtime.interface import Key
from events.kinds import (
    MOST_RUNS,
    AppProgressed,
    AppResizeRequested,
    EpochCompleted,
    MembershipChanged,
    ProgressLinesSkipped,
)
from tests.agents.progress.files import progressed, said, write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agents.progress import ProgressFact


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[1]",
        "7",
        '{"step": -1}',
        '{"step": 1.5}',
        '{"step": true}',
        '{"checkpoint": 9007199254740993}',
        '{"checkpoint": 1' + "0" * 400 + "}",
        '{"step": null}',
        "\x00\x00",
        "[" * 100_000,
    ],
)
def test_other_lines_are_skipped(path: Path, line: str) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, line + '\n{"checkpoint": 3}\n')
    assert said(file, 0) == [("Checkpointed", 3)]


@pytest.mark.parametrize("figure", ['"low"', "1" + "0" * 400, "true", "null", "[]"])
def test_figures_that_are_not_numbers_are_left_out(path: Path, figure: str) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, f'{{"step": 1, "loss": {figure}, "samples_per_s": 3}}\n')
    assert [(fact.step, fact.loss, fact.samples_per_s) for fact in progressed(file)] == [(1, None, 3.0)]
    write(path, f'{{"step": 2, "loss": -0.25, "samples_per_s": {figure}}}\n')
    assert [(fact.step, fact.loss, fact.samples_per_s) for fact in progressed(file)] == [(2, -0.25, None)]


def test_bytes_that_are_not_text_are_skipped(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    path.write_bytes(b'\xff\xfe{"step": 1}\n{"checkpoint": 1}\n')
    assert said(file, 0) == [("Checkpointed", 1)]


def test_lines_that_only_look_like_facts_cost_little(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, '{"step": "checkpoint" "checkpoint": no}\n' * 5000)
    decoded = 0
    decode = msgspec.json.decode

    def counted(line: bytes) -> object:
        nonlocal decoded
        decoded += 1
        return decode(line)

    monkeypatch.setattr(msgspec.json, "decode", counted)
    assert said(file, 0) == []
    assert decoded <= 4 * MOST_TRIES


@pytest.mark.parametrize(
    ("noise", "read"), [("1840.5", 1840.5), ("7", 7.0), ("null", None), ('"x"', None), ("true", None)]
)
def test_the_noise_of_the_gradient_comes_with_the_progress(path: Path, noise: str, read: float | None) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 5.0)
    write(path, f'{{"step": 1, "noise": {noise}}}\n')
    assert [fact.noise for fact in file.read(0) if isinstance(fact, AppProgressed)] == [read]


@pytest.mark.parametrize(
    ("line", "step", "loss", "loss_is"),
    [
        ('{"step": 3, "loss": NaN}', 3, None, "nan"),
        ('{"step": 3, "loss": Infinity}', 3, None, "inf"),
        ('{"step": 3, "loss": -Infinity}', 3, None, "-inf"),
        ('{"step": 3, "loss": 1e999}', 3, None, "inf"),
        ('{"step": "3", "loss": "0.5"}', 3, 0.5, ""),
        ('{"step": "3", "loss": "nan"}', 3, None, "nan"),
        ('{"step": 3.0, "loss": 1}', 3, 1.0, ""),
        ('{"step": 3, "loss": null}', 3, None, ""),
        ('{"step": 3, "loss": "low"}', 3, None, ""),
    ],
)
def test_a_loss_may_diverge_and_numbers_may_be_in_strings(
    path: Path, line: str, step: int, loss: float | None, loss_is: str
) -> None:
    write(path, line + "\n")
    (fact,) = progressed(ProgressFile(Key("app", 1, 0), path, 0.0))
    assert (fact.step, fact.loss, fact.loss_is) == (step, loss, loss_is)


def skipped(facts: Sequence[ProgressFact]) -> list[tuple[int, str]]:
    return [(fact.lines, fact.example) for fact in facts if isinstance(fact, ProgressLinesSkipped)]


def test_unusable_lines_are_counted_and_the_first_is_kept(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 2), path, 0.0)
    write(path, 'epoch 1\x1b done\n{"step": 1}\n\n{"step": -1}\n')
    (fact,) = [one for one in file.read(0) if isinstance(one, ProgressLinesSkipped)]
    assert (fact.app, fact.generation, fact.slot, fact.lines) == ("app", 1, 2, 2)
    assert fact.example == "epoch 1\ufffd done"
    assert "not a JSON object" in fact.reason
    write(path, '{"stp": 2}\n{"step": 2, "loss": "low"}\n')
    assert skipped(file.read(1)) == []
    assert skipped(file.read(SKIPPED_S)) == [(4, "epoch 1\ufffd done")]
    assert skipped(file.read(SKIPPED_S + 1, final=True)) == []


def test_an_agent_that_starts_again_does_not_repeat_what_the_log_has(path: Path) -> None:
    write(path, "one\ntwo\n")
    (fact,) = ProgressFile(Key("app", 1, 0), path, 0.0).read(0)
    end = int(fact.id.rpartition(".")[2])
    assert end == 8
    again = ProgressFile(Key("app", 1, 0), path, 0.0, Logged(skipped=end))
    assert again.read(0) == []
    write(path, "three\n")
    assert skipped(again.read(0, final=True)) == [(3, "one")]


def requests(file: ProgressFile, now: float, *, final: bool = False) -> list[tuple[int, str]]:
    facts = file.read(now, final=final)
    return [(fact.containers, fact.reason) for fact in facts if isinstance(fact, AppResizeRequested)]


def test_a_request_for_a_size_is_published_rarely_and_only_when_it_is_news(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, '{"request_size": 2, "reason": "the gap\\n grows"}\n')
    assert requests(file, 0) == [(2, "the gap grows")]
    write(path, '{"request_size": 2, "reason": "the gap grows"}\n')
    assert requests(file, REQUEST_S) == []
    for size in range(50):
        write(path, f'{{"request_size": {size + 1}}}\n{{"step": {size}}}\n')
        assert requests(file, REQUEST_S + size / 100) == ([(1, "")] if size == 0 else [])
    assert requests(file, 2 * REQUEST_S) == [(50, "")]
    write(path, '{"request_size": null, "reason": "none"}\n')
    assert requests(file, 2 * REQUEST_S + 1) == []
    assert requests(file, 2 * REQUEST_S + 2, final=True) == [], "who has ended asks for nothing"


def test_a_withdrawal_is_published_even_if_this_container_never_asked(path: Path) -> None:
    """An earlier generation did."""
    file = ProgressFile(Key("app", 2, 0), path, 0.0)
    write(path, '{"request_size": null}\n')
    assert requests(file, 0) == [(0, "")]


@pytest.mark.parametrize("size", ["-1", "true", '"2"', "2.5", "1e9", "100001", "[]"])
def test_invalid_sizes_are_not_requests(path: Path, size: str) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, f'{{"request_size": {size}}}\n')
    assert requests(file, 0) == []


def test_a_long_reason_is_cut(path: Path) -> None:
    file = ProgressFile(Key("app", 1, 0), path, 0.0)
    write(path, '{"request_size": 3, "reason": "' + "x" * 5000 + '"}\n')
    ((_, reason),) = requests(file, 0)
    assert len(reason) == 200


CHANGED = (
    '{"membership": 5, "step": 12, "members": [0, 3], "cause": "grow", "warm_up_s": 1.5, "barrier_s": 0.003, '
    '"pause_s": 0.012, "bytes_moved": 123456, "mood": "good"}\n'
)


def live(path: Path, interval_s: float = 5.0, logged: Logged | None = None) -> ProgressFile:
    return ProgressFile(Key("app", 2, 0), path, interval_s, logged, live=True)


def test_a_training_membership_is_published(path: Path) -> None:
    write(path, CHANGED)
    assert live(path).read(0) == [
        MembershipChanged(
            id=f"MembershipChanged.{len(CHANGED)}",
            app="app",
            generation=2,
            membership=5,
            step=12,
            members=[0, 3],
            change="grow",
            warm_up_s=1.5,
            barrier_s=0.003,
            pause_s=0.012,
            bytes_moved=123456,
        )
    ]
    assert [type(fact) for fact in ProgressFile(Key("app", 2, 0), path, 5.0).read(0)] == [AppProgressed], (
        "the words mean nothing in other apps"
    )


def test_a_death_names_who_is_gone(path: Path) -> None:
    write(path, '{"membership": 5, "step": 9, "members": [0], "cause": "death", "lost": [3], "repeated": true}\n')
    (fact,) = live(path).read(0)
    assert isinstance(fact, MembershipChanged)
    assert (fact.change, fact.lost, fact.repeated) == ("death", [3], True)


def test_the_end_of_an_epoch_is_published_with_its_ledger(path: Path) -> None:
    write(path, '{"epoch": 3, "step": 1260, "samples": 1797, "ledger": "%s"}\n{"step": 1261}\n' % ("ab" * 32))
    epoch, progress = live(path).read(0)
    assert isinstance(epoch, EpochCompleted)
    assert (epoch.epoch, epoch.samples, epoch.ledger) == (3, 1797, "ab" * 32)
    assert isinstance(progress, AppProgressed)
    assert progress.step == 1261


@pytest.mark.parametrize(
    "line",
    [
        '{"membership": 5}',
        '{"membership": -1, "step": 1, "members": [0], "cause": "grow"}',
        '{"membership": 5, "step": 1, "members": [0], "cause": "whim"}',
        '{"membership": 5, "step": 1, "members": "all", "cause": "grow"}',
        '{"membership": 5, "step": 1, "members": [0], "cause": "grow", "pause_s": -1}',
        '{"membership": 5, "step": 1, "members": [0], "cause": "grow", "pause_s": 1e999}',
        f'{{"membership": 5, "step": 1, "members": {list(range(5000))}, "cause": "grow"}}',
        '{"epoch": 1, "step": 1, "samples": 1, "ledger": "no digest"}',
        '{"epoch": "1", "step": 1, "samples": 1}',
        '{"membership": 5, "step": 1, "members": [0], "cause": "grow", "app": "another", "generation": 9, "v": 7}x',
    ],
)
def test_nonsense_of_live_apps_is_skipped(path: Path, line: str) -> None:
    write(path, CHANGED + line + "\n")
    facts = [fact for fact in live(path).read(0) if not isinstance(fact, ProgressLinesSkipped)]
    assert [fact.id for fact in facts] == [f"MembershipChanged.{len(CHANGED)}"]


def test_memberships_are_published_once_and_at_a_limited_rate(path: Path) -> None:
    file = live(path)
    write(path, CHANGED)
    assert len(file.read(0)) == 1
    write(path, CHANGED.replace("5", "6", 1) + CHANGED.replace("5", "7", 1))
    assert file.read(1) == []
    (fact,) = file.read(6)
    assert isinstance(fact, MembershipChanged)
    assert fact.membership == 7
    logged = Logged(membership=3 * len(CHANGED))
    assert live(path, logged=logged).read(0, final=True) == []


def _epoch(number: int, ledger: str = "ab" * 32) -> str:
    return f'{{"epoch": {number}, "step": {10 * number}, "samples": 1797, "ledger": "{ledger}"}}\n'


def test_rate_limited_epochs_are_published_with_the_next_one(path: Path) -> None:
    file = live(path)
    write(path, _epoch(0))
    assert [fact.epoch for fact in file.read(0) if isinstance(fact, EpochCompleted)] == [0]
    for number in range(1, 400):
        write(path, _epoch(number, "cd" * 32 if number == 7 else "ab" * 32))
    assert file.read(1) == []
    write(path, _epoch(400))
    (fact,) = file.read(6)
    assert isinstance(fact, EpochCompleted)
    runs = [(run.first, run.last, run.ledger[:2]) for run in fact.earlier]
    assert (fact.epoch, fact.omitted, runs) == (400, 0, [(1, 6, "ab"), (7, 7, "cd"), (8, 399, "ab")])


def test_the_epochs_of_one_fact_are_bounded_and_those_left_out_counted(path: Path) -> None:
    file = live(path)
    for number in range(2000):
        write(path, _epoch(number, f"{number:064x}"))
    (fact,) = file.read(0)
    assert isinstance(fact, EpochCompleted)
    assert (fact.epoch, len(fact.earlier), fact.omitted) == (1999, MOST_RUNS, 1999 - MOST_RUNS)
    assert fact.earlier[-1].last == 1998


def test_a_restarted_agent_reports_each_epoch_exactly_once(path: Path) -> None:
    write(path, _epoch(0) + _epoch(1) + _epoch(2))
    (fact,) = live(path, logged=Logged(epoch=len(_epoch(0)))).read(0)
    assert isinstance(fact, EpochCompleted)
    assert (fact.epoch, [(run.first, run.last) for run in fact.earlier]) == (2, [(1, 1)])


def test_lines_of_live_apps_and_requests_are_not_counted_as_faults(path: Path) -> None:
    write(path, '{"membership": 1, "step": 0}\n{"epoch": 1, "step": 1}\n{"request_size": 2}\n{"checkpoint": 4}\n')
    assert skipped(ProgressFile(Key("app", 1, 0), path, 0.0).read(0)) == []
