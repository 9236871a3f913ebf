"""Reading commands from a page, and detecting those that end otherwise than shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.session import Session, needs_cluster
from tests.docs.shown import Command, File, Page

if TYPE_CHECKING:
    from pathlib import Path

PAGE = Page(
    "page.md",
    """\
<!-- continues: other.md -->
```yaml title="app.yaml"
name: a
```
```console
$ dorm plan \\
    --rounds 3
APP     NOW  THEN
digits  3    5
$ echo $?
3
$ dorm events -f
^C
```
<!-- not run: needs root -->

```console
$ dorm bench chaos
```
""",
)


def test_files_and_commands_are_in_order() -> None:
    file, plan, events = PAGE.steps()
    assert file == File("app.yaml", "name: a\n")
    assert plan == Command("page.md:6", "dorm plan --rounds 3", ["APP     NOW  THEN", "digits  3    5"], 3)
    assert isinstance(plan, Command)
    assert plan.headings == [["APP", "NOW", "THEN"]]
    assert isinstance(events, Command)
    assert (events.text, events.interrupted, events.code) == ("dorm events -f", True, 0)
    assert PAGE.continues == "docs/other.md"


def test_an_exempted_block_gives_its_reason() -> None:
    assert [block.not_run for block in PAGE.blocks()] == ["", "", "needs root"]
    (first, *_) = Page("p", PAGE.text.replace("<!-- not run: needs root -->", "<!-- not run: -->")).blocks()[2:]
    assert first.not_run == ""


def test_which_commands_need_a_cluster() -> None:
    assert needs_cluster(["dorm", "ps"])
    assert not needs_cluster(["dorm", "story", "digits", "--file", "incident.dorm"])
    assert not needs_cluster(["dorm", "simulate", "paper"])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (Command("here", "dorm schema", [], 3), "ended with 0, not 3"),
        (Command("here", "dorm schema --wrong", []), "ended with 2, not 0"),
        (Command("here", "dorm schema --wrong | cat", []), "ended with 2, not 0"),
        (Command("here", "dorm schema", ["NAME  PHASE  SIZE"]), "no heading"),
        (Command("here", "dorm state --file missing.dorm", []), "ended with 1, not 0"),
    ],
)
async def test_a_command_that_ends_otherwise_is_found(command: Command, message: str, tmp_path: Path) -> None:
    async with Session(tmp_path) as session:
        with pytest.raises(AssertionError, match=message):
            await session.do(command)
