"""Work in separate processes: results and failures are returned, and nothing is left running."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dorm.bench import BenchError
from dorm.bench.apart import items_of
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def numbers(first: int, last: int) -> Iterator[tuple[int, int]]:
    for number in range(first, last):
        yield number, os.getpid()


def without_end() -> Iterator[str]:
    for number in itertools.count():
        yield str(number)


def fails(error: type[Exception], text: str) -> Iterator[str]:
    yield "first"
    raise error(text)


def is_killed() -> Iterator[str]:
    yield "first"
    os.kill(os.getpid(), signal.SIGKILL)


def chatters() -> Iterator[str]:
    os.write(1, b"from a library\n")
    yield "item"


def blocked() -> Iterator[bool]:
    yield signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def children() -> list[int]:
    """Processes that measure, and not servers of other tests in this one."""
    return [one.pid for one in psutil.Process().children() if "spawn_main" in " ".join(one.cmdline())]


def test_items_of_each_process_arrive_in_order() -> None:
    found = list(items_of([(numbers, (0, 50)), (numbers, (100, 150))]))
    assert sorted(number for number, _ in found) == [*range(50), *range(100, 150)]
    for process in {pid for _, pid in found}:
        mine = [number for number, pid in found if pid == process]
        assert mine == sorted(mine)
    assert len({pid for _, pid in found} | {os.getpid()}) == 3
    assert children() == []


def test_output_of_libraries_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(items_of([(chatters, ())])) == ["item"]
    assert capfd.readouterr() == ("", "")


def test_nothing_to_do() -> None:
    assert list(items_of([])) == []


def test_exceptions_are_raised_with_their_origin() -> None:
    items = items_of([(fails, (ValueError, "no such thing"))])
    assert next(items) == "first"
    with pytest.raises(ValueError, match="no such thing") as raised:
        next(items)
    assert "test_apart.py" in "".join(raised.value.__notes__)
    assert children() == []


def test_a_failure_ends_the_others() -> None:
    works: list[tuple[Callable[..., Iterator[str]], tuple[Any, ...]]] = [
        (without_end, ()),
        (fails, (BenchError, "it can't")),
    ]
    with raises(BenchError, "bench.failed"):
        list(items_of(works))
    assert children() == []


def test_a_killed_process_is_reported() -> None:
    with raises(BenchError, "bench.process_ended", "signal 9"):
        list(items_of([(is_killed, ())]))
    assert children() == []


def test_closing_early_ends_the_processes() -> None:
    with contextlib.closing(items_of([(without_end, ()), (without_end, ())])) as items:
        assert next(items) == "0"
        assert len(children()) == 2
    assert children() == []


def test_a_process_never_sees_ctrl_c_and_this_one_still_does() -> None:
    assert list(items_of([(blocked, ())])) == [True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
