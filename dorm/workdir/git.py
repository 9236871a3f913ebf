"""What git says about a folder: which files it tracks, and which rule ignores an entry.

Git is asked within a bounded time.  A repository's own settings may name programs, such as a file-system monitor, or a
transport to fetch missing objects.  The questions here start none of them, so shipping a folder of someone else runs nothing.
A question that compares contents, such as `git status`, would start filters too: it needs `unfiltered`.

    NoAnswer    git is not installed, does not answer in time, or does not take the folder for a repository
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PATIENCE_S = 10.0
_HARMLESS = ("--no-pager", "-c", "core.fsmonitor=false")
_ANY_OWNER = ("-c", "safe.directory=*")
"""Another user's repository too: git refuses it because of the programs in its settings, and these questions start none."""
_KEPT = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH")
_NO_SETTINGS: Final[Mapping[str, str]] = {}


class NoAnswer(Exception):
    """Git says nothing about the folder."""


class Rule(NamedTuple):
    """A line of a file with patterns."""

    source: str
    """The file: its path within the repository, or the absolute path of a file of git's elsewhere."""
    line: int
    pattern: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.pattern}"


def ask_git(
    folder: Path,
    *words: str,
    given: bytes = b"",
    timeout: float = _PATIENCE_S,
    any_owner: bool = False,
    settings: Mapping[str, str] = _NO_SETTINGS,
) -> tuple[int, bytes]:
    """Return git's exit code and output, with these settings above the repository's own.  Blocks for at most `timeout`
    seconds.  Raises NoAnswer."""
    # Variables such as GIT_DIR, which a hook sets, name another repository than the folder's own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT}
    # It must not wait for, or take, the lock of an index that another program uses, nor fetch or ask for anything.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    # Unlike the setting `protocol.allow`, this is above what the repository says of single protocols.
    environment["GIT_ALLOW_PROTOCOL"] = "none"
    # A key may hold a `=`, which would end it in an option `-c`.
    environment["GIT_CONFIG_COUNT"] = str(len(settings))
    for index, (key, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{index}": key, f"GIT_CONFIG_VALUE_{index}": value}
    try:
        done = subprocess.run(
            ["git", *_HARMLESS, *(_ANY_OWNER if any_owner else ()), "-C", str(folder), *words],
            input=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=timeout, check=False, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise NoAnswer(str(error)) from None
    return done.returncode, done.stdout


def unfiltered(folder: Path, timeout: float = _PATIENCE_S) -> dict[str, str]:
    """Return settings with which git starts none of the filters that the folder's repository itself names; those of the
    user's and the machine's settings, such as git-lfs, still run.  Blocks.  Raises NoAnswer."""
    code, out = ask_git(folder, "config", "--list", "-z", "--show-scope", "--name-only", timeout=timeout)
    if code:
        raise NoAnswer("git can't read its settings")
    fields = os.fsdecode(out).split("\0")
    found: dict[str, str] = {}
    for scope, name in zip(fields[::2], fields[1::2], strict=False):
        if scope in ("local", "worktree") and name.startswith("filter."):
            driver = name.rpartition(".")[0]
            found |= {f"{driver}.clean": "", f"{driver}.process": "", f"{driver}.required": "false"}
    return found


def repository_of(folder: Path) -> Path | None:
    """Return the folder of the repository that contains a (resolved) folder, by its `.git`; None if there is none."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


def tracked_below(folder: Path, repository: Path) -> list[str]:
    """Return the paths, relative to `folder`, of all that the index of its repository lists there, sorted.  A submodule is one
    path.  Raises NoAnswer, also if git takes another folder for the repository."""
    code, out = ask_git(folder, "rev-parse", "--show-toplevel", any_owner=True)
    if code or Path(os.fsdecode(out.removesuffix(b"\n"))) != repository:
        raise NoAnswer(f"{repository} is no repository of git")
    code, out = ask_git(folder, "ls-files", "-z", "--cached", any_owner=True)
    if code:
        raise NoAnswer("git can't read its index")
    return sorted({os.fsdecode(path) for path in out.split(b"\0") if path})


def rules_for(folder: Path, paths: Sequence[str]) -> list[Rule | None]:
    """Return for each path, relative to `folder`, the rule that ignores it or a folder above it; None if it is not ignored.
    Whether git tracks it does not count.  Raises NoAnswer."""
    if not paths:
        return []
    # Behind `./`, a name that begins with a colon is a name.
    given = b"".join(b"./" + os.fsencode(path) + b"\0" for path in paths)
    words = ("check-ignore", "-z", "--stdin", "--verbose", "--non-matching", "--no-index")
    code, out = ask_git(folder, *words, given=given, any_owner=True)
    fields = [os.fsdecode(field) for field in out.split(b"\0")]
    if code not in (0, 1) or len(fields) != 4 * len(paths) + 1:
        raise NoAnswer("git can't say which entries it ignores")
    found: list[Rule | None] = []
    for at in range(0, len(fields) - 1, 4):
        source, line, pattern = fields[at : at + 3]
        found.append(Rule(source, int(line or 0), pattern) if source and not pattern.startswith("!") else None)
    return found
