"""Every failure ends all workers in bounded time, with the right exit code and one line that says why."""

from __future__ import annotations

import contextlib
import gzip
import json
import signal
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from tests.apps.partition import Partition

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

SHORT = ("--steps", "12")


def failed_line(partition: Partition, code: int, rank: int = 0) -> str:
    """The one line with which a worker failed."""
    assert partition.workers[rank].wait(60) == code, partition.stderr(rank)
    line = partition.stderr(rank)
    assert line.count("\n") == 1, line
    return line


def test_a_taken_port(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", world_size=2, start=False) as partition, socket.socket() as taken:
        taken.bind(("127.0.0.1", partition.ports[1]))
        taken.listen()
        partition.start(1)
        assert f"cannot listen on 127.0.0.1:{partition.ports[1]}" in failed_line(partition, 98, rank=1)


def test_a_worker_that_never_arrives(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", "--connect-timeout", "0.5", world_size=3, start=False) as partition:
        partition.start(0)
        partition.start(2)
        assert "could not reach rank 1" in failed_line(partition, 1, rank=0)
        line = failed_line(partition, 1, rank=2)
        assert "waited 0.5 s for rank 1" in line or "rank 0" in line


def test_a_worker_that_falls_silent(tmp_path: Path) -> None:
    options = ("--pace", "0.001", "--report-every", "1", "--steps", "100000", "--peer-timeout", "0.5")
    with Partition(tmp_path, "logistic", *options, world_size=3) as partition:
        partition.until_step(2)
        partition.signal(1, signal.SIGSTOP)
        said = [failed_line(partition, 1, rank) for rank in (0, 2)]
        assert any("nothing came from it for 0.5 s" in line for line in said)


def test_workers_with_other_settings(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", world_size=2, start=False) as partition:
        partition.start(0)
        partition.start(1, "--seed", "2")
        lines = [failed_line(partition, 1, rank) for rank in (0, 1)]
        assert any("other settings" in line for line in lines)


def test_strangers_and_older_generations_are_waited_past(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", *SHORT, world_size=2, start=False) as partition:
        partition.start(0)
        partition.until_listening(0)
        hello = {"app": "app-1", "generation": 0, "world_size": 2, "run": "", "rank": 1}
        text = json.dumps(hello).encode()
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"", struct.pack("!4sII", b"drm1", len(text), 0) + text):
            with socket.create_connection(("127.0.0.1", partition.ports[0])) as stranger:
                with contextlib.suppress(OSError):  # it may hang up before all is sent
                    stranger.sendall(words)
                    stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(30)
                with contextlib.suppress(ConnectionResetError):  # it may hang up with some words unread
                    assert stranger.recv(100) == b"", "it is turned away without an answer"
        partition.start(1)
        assert partition.exit_codes() == [0, 0]


def cut_short(content: bytes) -> bytes:
    return content[: len(content) // 2]


def one_byte_wrong(content: bytes) -> bytes:
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "harm",
    [cut_short, one_byte_wrong, lambda _: b"", lambda _: b"not an archive"],
    ids=["cut short", "one byte wrong", "empty", "not an archive"],
)
def test_a_damaged_checkpoint(harm: Callable[[bytes], bytes], tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", *SHORT) as partition:
        assert partition.exit_codes() == [0]
    file = partition.checkpoints / "checkpoint.npz"
    file.write_bytes(harm(file.read_bytes()))
    with Partition(tmp_path, "logistic", *SHORT, "--resume", generation=2) as resumed:
        line = failed_line(resumed, 1)
    assert str(file) in line
    assert "damaged" in line


def test_no_checkpoint(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", "--resume") as partition:
        assert "start without --resume" in failed_line(partition, 1)


def test_a_checkpoint_of_another_training(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", *SHORT) as partition:
        assert partition.exit_codes() == [0]
    with Partition(tmp_path, "logistic", "--batch", "240", "--resume", generation=2) as other:
        assert "another batch" in failed_line(other, 1)
    with Partition(tmp_path, "mlp", "--resume", generation=3) as other_program:
        assert "program" in failed_line(other_program, 1)


def test_training_that_diverges(tmp_path: Path) -> None:
    with Partition(tmp_path, "factorize", "--learning-rate", "1000", world_size=2) as partition:
        for rank in (0, 1):
            assert "the loss is" in failed_line(partition, 1, rank)
        assert all("NaN" not in str(line) and "Infinity" not in str(line) for line in partition.progress())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--steps", "0"), "--steps: 0 is not between"),
        (("--steps", "many"), "'many' is not a whole number"),
        (("--pace", "nan"), "--pace: nan is not between"),
        (("--batch", "5000"), "there are 1416 rows"),
        (("--momentum", "2"), "--momentum"),
        (("--sttps", "3"), "unrecognized arguments: --sttps"),
    ],
)
def test_an_option_that_makes_no_sense(options: tuple[str, ...], words: str, tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", *options) as partition:
        assert words in failed_line(partition, 2)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DORM_RANK", "1", "ranks end at 0"),
        ("DORM_RANK", "first", "'first', not a whole number"),
        ("DORM_WORLD_SIZE", "0", "less than 1"),
        ("DORM_WORLD_SIZE", "2", "names 1 workers"),
        ("DORM_PEERS", "localhost", "not host:port"),
        ("DORM_PEERS", "localhost:99999", "not host:port"),
        ("DORM_PROGRESS", "/dev/null/progress", "cannot append to DORM_PROGRESS"),
        ("DORM_CHECKPOINT_DIR", "/dev/null/saved", "cannot make DORM_CHECKPOINT_DIR"),
        ("DORM_SAMPLE_DATA", "/nowhere/digits.csv.gz", "cannot read the digits from /nowhere"),
    ],
)
def test_an_environment_that_makes_no_sense(name: str, value: str, words: str, tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", *SHORT, start=False) as partition:
        partition.start(0, environment={name: value})
        assert words in failed_line(partition, 2)


@pytest.mark.parametrize(
    "content",
    [
        b"pixels,label\n",
        gzip.compress(b"1,2,3\n4,5,6\n"),
        gzip.compress(b"nan," * 64 + b"0\n") * 1000,
        b"\x1f\x8bgarbage",
    ],
    ids=["words", "too narrow", "not numbers", "not gzip"],
)
def test_data_that_are_not_the_digits(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / ("digits.csv.gz" if content.startswith(b"\x1f\x8b") else "digits.csv")
    file.write_bytes(content)
    with Partition(tmp_path, "logistic", *SHORT, start=False) as partition:
        partition.start(0, environment={"DORM_SAMPLE_DATA": str(file)})
        assert str(file) in failed_line(partition, 2)
