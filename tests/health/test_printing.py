"""Programs that run for long outlive whatever takes their output."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from dorm.health.printing import Output, Writer

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import asyncio, logging, os, sys, warnings
import structlog
from dorm.cli import program_logs
from dorm.cli.output import console
from dorm.health import printing

program_logs.configure(0, True)

async def work():
    for number in range(100):
        structlog.get_logger().warning("a line", number=number)
        logging.getLogger("asyncio").error("of a library")
        console.print("a message")
    warnings.warn("a warning")

asyncio.run(work())
printing.drain()
os.write(int(sys.argv[1]), f"{printing.lost()}".encode())
"""


def ran(*, stdout: int | None = None, stderr: int | None = None, closed: tuple[int, ...] = ()) -> tuple[int, int]:
    """Run a program that prints to these; return its exit code, and how many lines it lost."""
    reading, writing = os.pipe()

    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(writing)],
            stdout=stdout,
            stderr=stderr,
            pass_fds=(writing,),
            preexec_fn=close,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    with os.fdopen(reading) as said:
        return done.returncode, int(said.read() or -1)


def test_a_full_disk_ends_nothing() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code, lost = ran(stdout=full, stderr=full)
    finally:
        os.close(full)
    assert code == 0
    assert lost >= 300


def test_a_pipe_without_a_reader_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code, lost = ran(stdout=writing, stderr=writing)
    finally:
        os.close(writing)
    assert code == 0
    assert lost >= 300


def test_a_reader_that_stalls_holds_nothing_up() -> None:
    """The pipe is full from the start, and nobody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    try:
        code, lost = ran(stdout=writing, stderr=writing)
    finally:
        os.close(writing)
        os.close(reading)
    assert code == 0
    assert lost == 0, "all of it waits in the queue"


def test_closed_streams_end_nothing_and_their_numbers_go_to_no_other_file() -> None:
    assert ran(closed=(1, 2)) == (0, 0)


def test_what_can_be_written_is_complete_and_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        assert ran(stdout=log.fileno(), stderr=log.fileno()) == (0, 0)
    lines = (tmp_path / "log").read_text().splitlines()
    numbered = [json.loads(line)["number"] for line in lines if line.startswith("{")]
    assert numbered == list(range(100))
    assert lines.count("a message") == lines.count("of a library") == 100
    assert lines.index("a message") < lines.index("of a library", 2), "output and log of one file share a queue"
    assert any("a warning" in line for line in lines)


def test_the_next_line_says_how_many_were_lost(tmp_path: Path) -> None:
    """A file that may not grow takes half a line, then none; then it may grow again."""
    path, writer = tmp_path / "log", Writer()
    with path.open("wb") as file:
        output = Output(file.fileno(), writer, lambda count: f"lost {count}")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        try:
            for _ in range(3):
                output.write("123456\n")
            written(writer)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        output.write("last\n")
        output.write("end")
        output.flush()
        written(writer)
    assert path.read_text() == "123456\n123\nlost 2\nlast\nend"
    assert writer.lost == 2


def test_the_queue_is_bounded() -> None:
    reading, writing = os.pipe()
    try:
        writer = Writer(most_bytes=200_000)
        output = Output(writing, writer, lambda count: f"lost {count}")
        line = "x" * 999 + "\n"
        for _ in range(300):
            output.write(line)
        lost = writer.lost
        assert lost in range(35, 101), "the queue, and what the pipe has taken by now, hold the rest"
        got = 0
        while got < (300 - lost) * 1000:
            got += len(os.read(reading, 1 << 20))
        output.write("last\n")
        written(writer)
        assert os.read(reading, 4096) == f"lost {lost}\nlast\n".encode()
    finally:
        os.close(reading)
        os.close(writing)


def test_another_program_may_have_made_the_file_non_blocking() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    writer = Writer()
    output = Output(writing, writer, None)
    try:
        output.write("x" * 100_000 + "\n")
        got = 0
        while got < 100_001:
            got += len(os.read(reading, 4096))
        written(writer)
        assert writer.lost == 0
    finally:
        os.close(reading)
        os.close(writing)


def test_only_text_is_written() -> None:
    output = Output(2, Writer(), None)
    with pytest.raises(TypeError):
        output.write(b"bytes")  # type: ignore[arg-type]
    output.close()
    assert not output.closed


def written(writer: Writer) -> None:
    writer.drain(time.monotonic() + 30)
