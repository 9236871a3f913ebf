"""What README and the documentation show: files and commands, in the order of a page.

    ```yaml title="app.yaml"      a file that the reader writes
    ```console                    commands after `$ `, each followed by its output
    $ dorm plan
    …
    $ echo $?                     the exit code of the command before, if it is not 0
    3
    $ dorm events -f
    ^C                            the reader interrupts it

A page that says `<!-- continues: tutorial.md -->` assumes what that page has done.  `<!-- not run: REASON -->` before a block
exempts it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([\w+-]*)(.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->")
_CONTINUES = re.compile(r"<!-- continues: (\S+) -->")
_GENERATED = {"docs/evaluation/report.md"}


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    title: str
    lines: list[str]
    not_run: str
    """Why its commands are not run; empty if they are."""


class File(NamedTuple):
    """A file that a page asks the reader to write."""

    name: str
    text: str


class Command(NamedTuple):
    """A command that a page shows."""

    where: str
    text: str
    output: list[str]
    code: int = 0

    @property
    def interrupted(self) -> bool:
        """Whether the reader ends it with Ctrl-C."""
        return self.output[-1:] == ["^C"]

    @property
    def steps(self) -> set[str]:
        """The apps for which it shows a step that they have reported."""
        head = next((line for line in self.output if {"NAME", "STEP"} <= set(line.split())), "")
        at = head.find("STEP")
        return {
            line.split()[0] for line in self.output if head and line != head and line[at : at + 1] in set("123456789")
        }

    @property
    def headings(self) -> list[list[str]]:
        """Headings of the tables in its output: they are the same whatever the rows hold."""
        rows = [line.split() for line in self.output if line == line.upper()]
        return [
            row for row in rows if len(row) >= 3 and all(re.fullmatch(r"[A-Zρ][A-Z/-]*|[a-zA-Z]", word) for word in row)
        ]


class Page(NamedTuple):
    """README or a page of the documentation."""

    name: str
    text: str

    @property
    def continues(self) -> str:
        """The page whose commands have to come first, by its place in the repository; or nothing."""
        found = _CONTINUES.search(self.text)
        return f"docs/{found[1]}" if found else ""

    def blocks(self) -> list[Block]:
        """All fenced blocks."""
        found: list[Block] = []
        opened: tuple[str, str, Block] | None = None
        before = ""
        for number, line in enumerate(self.text.splitlines(), 1):
            fence = _FENCE.match(line)
            if opened is not None:
                indent, marks, block = opened
                if fence is not None and fence[2].startswith(marks) and not fence[3]:
                    found.append(block)
                    opened = None
                else:
                    block.lines.append(line.removeprefix(indent))
            elif fence is not None:
                title = _TITLE.search(fence[4])
                reason = _NOT_RUN.fullmatch(before)
                block = Block(number, fence[3], title[1] if title else "", [], reason[1] if reason else "")
                opened = (fence[1], fence[2], block)
            if line.strip():
                before = line.strip()
        assert opened is None, f"{self.name}: a block is not closed"
        return found

    def steps(self) -> list[File | Command]:
        """What a reader does, in order."""
        steps: list[File | Command] = []
        for block in self.blocks():
            if block.title:
                steps.append(File(block.title, "\n".join(block.lines) + "\n"))
            elif block.language == "console" and not block.not_run:
                steps.extend(self._commands(block))
        return steps

    def _commands(self, block: Block) -> list[Command]:
        shown: list[tuple[int, str, list[str]]] = []
        for number, line in enumerate(block.lines, block.line + 1):
            if shown and shown[-1][1].endswith("\\") and not shown[-1][2]:
                start, text, _ = shown[-1]
                shown[-1] = (start, text[:-1] + line.strip(), [])
            elif line.startswith("$ "):
                shown.append((number, line.removeprefix("$ "), []))
            else:
                assert shown, f"{self.name}:{number}: this block does not begin with a command: {line!r}"
                shown[-1][2].append(line)
        commands: list[Command] = []
        for number, text, output in shown:
            if text == "echo $?":
                commands[-1] = commands[-1]._replace(code=int(output[0]))
            else:
                commands.append(Command(f"{self.name}:{number}", text, output))
        return commands


def pages() -> dict[str, Page]:
    """README and the documentation, by their place in the repository."""
    files = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    names = [str(file.relative_to(REPOSITORY)) for file in files]
    return {name: Page(name, (REPOSITORY / name).read_text()) for name in names if name not in _GENERATED}


def sessions() -> dict[str, list[Page]]:
    """Pages with commands that can be run, each under the page that it continues, in one session with it."""
    found: dict[str, list[Page]] = {}
    every = pages()
    for page in sorted(every.values(), key=lambda page: bool(page.continues)):
        if page.continues:
            assert page.continues in found, f"{page.name} continues {page.continues}, which has no commands"
            found[page.continues].append(page)
        elif any(isinstance(step, Command) for step in page.steps()):
            found[page.name] = [page]
    return found
