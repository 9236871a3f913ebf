"""What git says about a folder: which files it tracks, and which rule ignores an entry.

Git is asked within a bounded time.  A repository's own settings may name programs, such as a file-system monitor, or a
transport to fetch missing objects.  The questions here start none of them, so shipping a folder of someone else runs nothing.
A question that compares contents, such as `git status`, would start filters too: it needs `unfiltered`.

    NoAnswer    git is not installed, does not answer in time, or does not take the folder for a repository

Which files of a folder are left out, and by which rule.

In this order: `.dormignore` files decide; files that git tracks are shipped; environments and caches are left out; what git
ignores is left out.  Git itself says what it tracks and ignores, so its own exclude files count too.  In a folder of no
repository, or if git does not answer, the `.gitignore` files are read here by the same rules, and nothing counts as tracked.

The patterns of a deeper folder come after those of a higher one; of several that match, the last one counts.  The content of
a folder that is left out is not examined, except for the files in it that git tracks."""

from __future__ import annotations

import contextlib
import os
import subprocess
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pathspec import GitIgnoreSpec

from dorm.workdir.errors import Unshippable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# --- git --------------------------------------------------------------------------------------------------------------

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
    *arguments: str,
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
            ["git", *_HARMLESS, *(_ANY_OWNER if any_owner else ()), "-C", str(folder), *arguments],
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
    settings: dict[str, str] = {}
    for scope, name in zip(fields[::2], fields[1::2], strict=False):
        if scope in ("local", "worktree") and name.startswith("filter."):
            driver = name.rpartition(".")[0]
            settings |= {f"{driver}.clean": "", f"{driver}.process": "", f"{driver}.required": "false"}
    return settings


def repository_of(folder: Path) -> Path | None:
    """Return the folder of the repository that contains a (resolved) folder, by its `.git`; None if there is none."""
    return next((candidate for candidate in (folder, *folder.parents) if (candidate / ".git").exists()), None)


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
    command = ("check-ignore", "-z", "--stdin", "--verbose", "--non-matching", "--no-index")
    code, out = ask_git(folder, *command, given=given, any_owner=True)
    fields = [os.fsdecode(field) for field in out.split(b"\0")]
    if code not in (0, 1) or len(fields) != 4 * len(paths) + 1:
        raise NoAnswer("git can't say which entries it ignores")
    rules: list[Rule | None] = []
    for at in range(0, len(fields) - 1, 4):
        source, line, pattern = fields[at : at + 3]
        rules.append(Rule(source, int(line or 0), pattern) if source and not pattern.startswith("!") else None)
    return rules


# --- ignoring ---------------------------------------------------------------------------------------------------------

GIT, OWN = ".gitignore", ".dormignore"
_LARGEST = 1024 * 1024
NEVER = frozenset((".git", ".hg", ".svn", ".jj"))
"""Names that are left out even if git tracks something in them."""
ALWAYS = NEVER | frozenset(
    (
        "__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", "node_modules",
        ".DS_Store",
    )
)  # fmt: skip
"""Names that are left out unless git tracks them: no app needs them from its author's machine."""


class _Verdict(NamedTuple):
    rule: Rule
    out: bool


class _Patterns(NamedTuple):
    """The patterns of one file."""

    prefix: str
    """Prefix to put before a path within the shipped folder, or, for patterns of folders below it, to leave out of it."""
    within: str
    spec: GitIgnoreSpec
    rules: list[Rule]

    @classmethod
    def read(cls, path: Path, source: str, prefix: str = "", within: str = "") -> _Patterns | None:
        """Blocks.  Raises Unshippable."""
        try:
            if not path.is_file():  # A pipe of this name has no end.
                return None
            with path.open("rb") as file:
                content = file.read(_LARGEST).removeprefix(b"\xef\xbb\xbf")
        except OSError:
            return None
        # As git reads it: a line ends with a line feed alone, and a carriage return before that is not a part of it.
        lines = [line.removesuffix("\r") for line in content.decode("utf-8", "surrogateescape").split("\n")]
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line]
        try:
            spec = GitIgnoreSpec.from_lines([line for _, line in numbered])
        except ValueError as error:
            raise Unshippable(
                f"{path}: a line of it is not a pattern: {error}", code="workdir.ignore.malformed"
            ) from None
        return (
            cls(prefix, within, spec, [Rule(source, number, line) for number, line in numbered]) if numbered else None
        )

    def verdict(self, path: str, *, folder: bool) -> _Verdict | None:
        result = self.spec.check_file(self.prefix + path.removeprefix(self.within) + ("/" if folder else ""))
        if result.include is None or result.index is None:
            return None
        return _Verdict(self.rules[result.index], result.include)


class _Chain:
    """The patterns of all files of one name, from the highest folder down."""

    def __init__(self, name: str, files: tuple[_Patterns, ...] = ()) -> None:
        self._name = name
        self._files = files

    def above(self, root: Path, repository: Path) -> _Chain:
        """Return it with the files of the folders above `root`, up to the repository's."""
        files = []
        for folder in reversed(
            [parent for parent in root.parents if parent == repository or repository in parent.parents]
        ):
            file, prefix = folder / self._name, f"{root.relative_to(folder).as_posix()}/"
            files.append(_Patterns.read(file, file.relative_to(repository).as_posix(), prefix))
        return _Chain(self._name, tuple(patterns for patterns in files if patterns is not None))

    def below(self, folder: Path, path: str) -> _Chain:
        """Return it with the file of a folder, whose path within the shipped one is `path` ("" for itself)."""
        prefix = f"{path}/" if path else ""
        patterns = _Patterns.read(folder / self._name, prefix + self._name, within=prefix)
        return self if patterns is None else _Chain(self._name, (*self._files, patterns))

    def verdict(self, path: str, *, folder: bool) -> _Verdict | None:
        for patterns in reversed(self._files):
            if verdict := patterns.verdict(path, folder=folder):
                return verdict
        return None

    def leaves_out_all(self) -> bool:
        return any(file.spec.check_file(file.prefix).include for file in self._files)


class _Repository:
    """A repository that git answers for, or the part of it below the shipped folder."""

    def __init__(self, folder: Path, path: str, repository: Path) -> None:
        """`path`: of `folder` within the shipped one.  Blocks.  Raises NoAnswer."""
        self.folder = folder
        self.prefix = f"{path}/" if path else ""
        self._tracked = tracked_below(folder, repository)
        self._files = frozenset(self._tracked)

    def tracks(self, path: str) -> bool:
        """Return whether an entry is tracked by its own path, as a file or a submodule is."""
        return path.removeprefix(self.prefix) in self._files

    def tracked_in(self, path: str) -> list[str]:
        """Return the paths of all that is tracked in a folder; of a submodule, its own."""
        inner = path.removeprefix(self.prefix)
        if inner in self._files:
            return [path]
        begin = bisect_left(self._tracked, f"{inner}/")
        end = bisect_left(self._tracked, f"{inner}0", begin)  # "0" comes right after "/".
        return [self.prefix + name for name in self._tracked[begin:end]]


class Entry(NamedTuple):
    path: str
    """Within the shipped folder."""
    folder: bool


class Answer(NamedTuple):
    """Whether an entry is left out."""

    rule: Rule | None = None
    """Rule that leaves it out; None if it is shipped, or if it is left out because of its name."""
    by_name: bool = False
    insisted: bool = False
    """A `.dormignore` says that it is shipped."""
    tracked: bool = False
    """Git tracks it, or something in it."""


class Ignored:
    """The rules for the content of one folder."""

    def __init__(self, own: _Chain, chain: _Chain, git: _Repository | None, notes: list[str]) -> None:
        self._own = own
        self._chain = chain
        """The `.gitignore` files, which count where git does not answer."""
        self._git = git
        self.notes = notes
        """Notes for the folder's owner on how the rules were read, one list for all folders."""

    @classmethod
    def of(cls, root: Path) -> Ignored:
        """Return the rules for the content of a (resolved) folder, with those of the repository that contains it.  Blocks.
        Raises Unshippable."""
        notes: list[str] = []
        repository, chain, git = repository_of(root), _Chain(GIT), None
        if repository is not None:
            chain = chain.above(root, repository)
            try:
                inner = str(root.relative_to(repository))
                named = root != repository and rules_for(repository, [inner])[0] is not None
                git = None if named else _Repository(root, "", repository)
            except NoAnswer as error:
                notes.append(f"git does not say which files it tracks ({error}), so {GIT} counts for all of them")
                named = chain.leaves_out_all()
            if named:
                chain = _Chain(GIT)  # The repository ignores this very folder, but its author names it explicitly.
        return cls(_Chain(OWN), chain, git, notes)._with(root, "", git)

    def below(self, folder: Path, path: str) -> Ignored:
        """Return the rules for the content of `folder`, whose path within the shipped one is `path`.  A repository in it, such
        as a submodule, has its own, in addition.  Blocks.  Raises Unshippable."""
        git = self._git
        if (folder / ".git").exists():
            # Otherwise, the rules around it count.
            with contextlib.suppress(NoAnswer):
                git = _Repository(folder, path, folder)
        return self._with(folder, path, git)

    def _with(self, folder: Path, path: str, git: _Repository | None) -> Ignored:
        return Ignored(self._own.below(folder, path), self._chain.below(folder, path), git, self.notes)

    def tracked_in(self, path: str) -> list[str]:
        """Return the paths of all that git tracks in a folder below, within the shipped one."""
        return self._git.tracked_in(path) if self._git is not None else []

    def leaves_out(self, path: str) -> Rule | None:
        """Return the rule of a `.dormignore` that leaves a file out; None if there is none."""
        verdict = self._own.verdict(path, folder=False)
        return verdict.rule if verdict is not None and verdict.out else None

    def _first(self, entry: Entry) -> Answer | None:
        """Return what is known of an entry without git's rules; None if they decide."""
        path, name = entry.path, entry.path.rpartition("/")[2]
        verdict = self._own.verdict(path, folder=entry.folder)
        if name in NEVER:
            return Answer(by_name=True)
        if verdict is not None and verdict.out:
            return Answer(verdict.rule)
        tracked = self._git is not None and (
            bool(self._git.tracked_in(path)) if entry.folder else self._git.tracks(path)
        )
        if name in ALWAYS and not (tracked and not entry.folder):
            return Answer(by_name=True, tracked=tracked)
        if tracked and not entry.folder:
            return Answer(tracked=True)
        if verdict is not None:
            return Answer(insisted=True, tracked=tracked)
        if self._git is None:
            return Answer(self._read(entry))
        return None

    def _read(self, entry: Entry) -> Rule | None:
        """Return the rule that ignores an entry, without git."""
        verdict = self._chain.verdict(entry.path, folder=entry.folder)
        return verdict.rule if verdict is not None and verdict.out else None

    def _answered(self, entry: Entry, rule: Rule | None) -> Answer:
        """Return the answer about an entry after git has named its own rule."""
        if rule is None and self._git is not None and self._git.prefix:
            rule = self._read(entry)
        return Answer(rule, tracked=entry.folder and bool(self.tracked_in(entry.path)))


def judged(entries: Sequence[tuple[Ignored, Entry]]) -> list[Answer]:
    """Return the answers about entries of several folders; git is asked once for each repository.  Blocks."""
    answers = [ignored._first(entry) for ignored, entry in entries]
    left = [at for at, answer in enumerate(answers) if answer is None]
    repositories = {id(git): git for at in left if (git := entries[at][0]._git) is not None}
    for git in repositories.values():
        places = [at for at in left if entries[at][0]._git is git]
        try:
            rules = rules_for(git.folder, [entries[at][1].path.removeprefix(git.prefix) for at in places])
        except NoAnswer:
            rules = [entries[at][0]._read(entries[at][1]) for at in places]
        for at, rule in zip(places, rules, strict=True):
            ignored, entry = entries[at]
            if rule is not None and not rule.source.startswith("/"):
                rule = rule._replace(source=git.prefix + rule.source)
            answers[at] = ignored._answered(entry, rule)
    return [answer if answer is not None else Answer() for answer in answers]
