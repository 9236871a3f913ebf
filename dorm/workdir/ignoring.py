"""Which files of a folder are left out, by the rules of git.

`.gitignore` and `.dormignore` of each folder hold patterns for what is below it; those of a deeper folder come after those of
a higher one, and those of `.dormignore` after those of `.gitignore` beside it.  Of several patterns that match, the last one
counts.  If the folder is a part of a git repository, the `.gitignore` files above it count as well.  The content of an ignored
folder is not examined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pathspec import GitIgnoreSpec

from dorm.workdir.errors import Unshippable

if TYPE_CHECKING:
    from pathlib import Path

GIT, OWN = ".gitignore", ".dormignore"
_LARGEST = 1024 * 1024
ALWAYS = frozenset(
    (
        ".git", ".hg", ".svn", ".jj", "__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache",
        ".tox", ".nox", "node_modules", ".DS_Store",
    )
)  # fmt: skip
"""Names that are always left out: no app needs them from its author's machine."""
VENV = "pyvenv.cfg"
"""A folder with this file is a virtual environment, whose paths and programs are of this machine."""


class _Rules(NamedTuple):
    prefix: str
    """What to put before a path within the shipped folder, or, for rules of folders below it, to leave out of it."""
    within: str
    spec: GitIgnoreSpec


class Ignored:
    """The rules below one folder; `below` returns those of a folder in it."""

    def __init__(self, rules: tuple[_Rules, ...]) -> None:
        self._rules = rules

    @classmethod
    def of(cls, root: Path) -> Ignored:
        """Return the rules for the content of `root`, with those of the repository that contains it.  Blocks.  Raises
        Unshippable."""
        rules: list[_Rules] = []
        repository = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
        above = [folder for folder in root.parents if folder == repository or repository in folder.parents]
        for folder in reversed(above):
            lines = _lines(folder / GIT)
            if lines:
                rules.append(_Rules(f"{root.relative_to(folder).as_posix()}/", "", _compiled(lines, folder / GIT)))
        if any(one.spec.check_file(one.prefix).include for one in rules):
            rules = []  # The repository ignores this very folder, but its author names it explicitly.
        return cls(tuple(rules)).below(root, "")

    def below(self, folder: Path, path: str) -> Ignored:
        """Return the rules for the content of `folder`, whose path within the shipped one is `path` ("" for itself).  Blocks.
        Raises Unshippable."""
        lines = [*_lines(folder / GIT), *_lines(folder / OWN)]
        if not lines:
            return self
        return Ignored((*self._rules, _Rules("", f"{path}/" if path else "", _compiled(lines, folder / OWN))))

    def leaves_out(self, path: str, *, folder: bool) -> bool:
        """Return whether an entry of this folder is left out, by its path within the shipped one."""
        if path.rpartition("/")[2] in ALWAYS:
            return True
        for rules in reversed(self._rules):
            told = rules.prefix + path.removeprefix(rules.within) + ("/" if folder else "")
            include = rules.spec.check_file(told).include
            if include is not None:
                return include
        return False


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _compiled(lines: list[str], path: Path) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise Unshippable(
            f"{path.parent}: a line of {GIT} or {OWN} is not a pattern: {error}", code="workdir.ignore.malformed"
        ) from None
