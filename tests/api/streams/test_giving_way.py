"""An API that writes to many readers at once lets other processes run in between."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dorm.api.streams import Readers

if TYPE_CHECKING:
    import pytest


class Taking:
    """A reader's stream, which may be over."""

    def __init__(self, number: int, done: list[str]) -> None:
        self._number = number
        self._done = done

    def push(self, chunk: bytes) -> bool:
        assert chunk == b"2\r\nhi\r\n"
        self._done.append("write")
        return self._number % 10 != 0


def test_a_thousand_writes_never_hold_the_processor_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(os, "sched_yield", lambda: done.append("give way"))
    readers = Readers()
    for number in range(1000):
        readers.add(Taking(number, done))  # type: ignore[arg-type]
    readers.push(b"hi")
    assert done.count("write") == 1000
    assert max(len(part.split()) for part in " ".join(done).split("give way")) <= 16
    assert len(readers) == 900, "those that are over get nothing more"
    done.clear()
    readers.push(b"hi")
    assert done.count("write") == 900
