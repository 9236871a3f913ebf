"""A container's failure includes its last output, in one short line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agents.reporting.last_words import in_one_line
from events import kinds as k
from tests.agents.one_node import Node

if TYPE_CHECKING:
    from pathlib import Path

TRACEBACK = (
    b'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\nValueError: no data\n\n'
)


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"one\r\n\ntwo", "one / two"),
        (TRACEBACK, 'File "train.py", line 3, in <module> / main() / ValueError: no data'),
        (b"    print(x[0])\n          ~^^^\nIndexError: no 0\n", "print(x[0]) / IndexError: no 0"),
        (b"\xff\x1b[31mred", "\ufffd\x1b[31mred"),
    ],
)
def test_output_is_condensed_to_one_line(output: bytes, line: str) -> None:
    assert in_one_line(output) == line


def test_the_end_of_a_long_line_counts() -> None:
    line = in_one_line(b"x" * 10_000 + b" cause")
    assert (len(line), line[0], line[-6:]) == (400, "…", " cause")


async def test_a_failure_is_reported_and_a_clean_end_is_not(tmp_path: Path) -> None:
    node = Node(tmp_path)
    try:
        async with node.agent():
            await node.release("echo first; echo no data >&2; exit 3")
            await node.release("echo done", app="app-2")
            exits = await node.said(lambda facts: sum(isinstance(fact, k.ContainerExited) for fact in facts) == 2)
            said = {fact.app: (fact.exit_code, fact.message) for fact in exits if isinstance(fact, k.ContainerExited)}
            assert said == {"app-1": (3, "first / no data"), "app-2": (0, "")}
    finally:
        await node.clean()
