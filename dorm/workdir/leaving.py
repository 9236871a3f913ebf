"""What is left out of a shipped folder, in words; and a failure that this explains: the app misses what was left out."""

from __future__ import annotations

import os
import posixpath
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from dorm.workdir.errors import Unshippable
from dorm.workdir.ignoring import GIT, OWN
from dorm.workdir.scanning import VOLUMES, Left, Scanned, scan
from events.quantities import MEMORY, humanize
from events.workdir import MOST_BYTES, MOST_FILES, Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_LARGE, _MANY = 100 * 2**20, 5000
"""Bytes and files from which on something is data that belongs into a volume."""
_NAMED = 3
_ANY = Limits(file=MOST_BYTES, total=MOST_BYTES, count=MOST_FILES)
_MISSING = re.compile(
    r"no such file|not found|can.t open|cannot open|unable to open|failed to open|could not open|(does not|doesn.t) exist"
    r"|FileNotFound|ENOENT|No module named|cannot import name",
    re.IGNORECASE,
)
_WORD = re.compile(r"""'([^'\n]+)'|"([^"\n]+)"|`([^`\n]+)`|([^\s'"`:,;()\[\]]+)""")
_MODULE = re.compile(r"No module named '?([\w.]+)|cannot import name '(\w+)' from '([\w.]+)'")
_ENDINGS = (".py", ".pyi", ".so")


def look_at(folder: Path, limits: Limits = _ANY) -> Scanned:
    """Return what would be shipped of a folder, and what is left out and why.  Blocks.  Raises Unshippable."""
    return scan(folder, limits)


def summary_of(left_out: Iterable[Left]) -> str:
    """Return how many entries each rule's file leaves out, such as `.gitignore: 12 entries, 1.2 GiB`; "" for none.  Caches do
    not count, as nobody misses them, and links and special files have lines of their own (`notices_of`)."""
    groups: dict[str, list[Left]] = defaultdict(list)
    for left in left_out:
        if left.kind == "rule":
            # The files of one name in different folders are one group.
            groups[next((name for name in (GIT, OWN) if posixpath.basename(left.source) == name), left.source)].append(
                left
            )
        elif left.kind == "environment":
            groups["environments"].append(left)
    return "; ".join(f"{name}: {_entries(len(members))}, {_size_of(members)}" for name, members in groups.items())


def listed(left_out: Iterable[Left]) -> list[str]:
    """Return a line for each entry: what it is, how large, and by which rule it is left out."""
    lines = []
    for left in left_out:
        amount = f" ({_size_of([left])} in {left.files:,} file{'' if left.files == 1 else 's'})" if left.files else ""
        lines.append(f"{left.path}{amount}: {left.why}")
    return lines


def notices_of(scanned: Scanned, *, volumes: bool = False) -> list[str]:
    """Return what the folder's owner may not expect, a line each: links that lead out, special files, and large data, unless
    its app has `volumes` already."""
    lines = list(scanned.notes)
    links = [left for left in scanned.left_out if left.kind == "link"]
    lines += [
        f"{left.path} is {left.why}, outside of the folder, and is left out; {VOLUMES}" for left in links[:_NAMED]
    ]
    special = [left for left in scanned.left_out if left.kind == "special"]
    lines += [f"{left.path} is {left.why} and is left out" for left in special[:_NAMED]]
    if more := len(links[_NAMED:]) + len(special[_NAMED:]):
        lines.append(f"{more:,} more that lead out of the folder or are no regular files are left out")
    large = [left for left in scanned.left_out if left.kind == "rule" and (left.size >= _LARGE or left.files >= _MANY)]
    if large and not volumes:
        largest = sorted(large, key=lambda left: (-left.size, left.path))[:_NAMED]
        named = ", ".join(f"{left.path} ({_size_of([left])})" for left in largest)
        lines.append(f"{named} {'is' if len(largest) == 1 else 'are'} left out; {VOLUMES}")
    return lines


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _size_of(members: Sequence[Left]) -> str:
    size = humanize(MEMORY, sum(left.size for left in members))
    return size if all(left.complete for left in members) else f"more than {size}"


# --- failures -----------------------------------------------------------------------------------------------------------


def misses(output: str) -> bool:
    """Return whether the end of an app's output looks as if a file or a module was missing."""
    return _MISSING.search(output) is not None


def explained(output: str, folder: Path) -> str:
    """Return which file or module the end of an app's output misses that is in this folder and is left out of what is shipped,
    with the rule; "" if none is.  Blocks."""
    if not misses(output):
        return ""
    try:
        left_out = look_at(folder).left_out
    except (Unshippable, OSError):
        return ""
    root = folder.resolve()
    # The last message is the one that ended it.
    for line in [message for message in reversed(re.split(r"\n| / ", output)) if _MISSING.search(message)]:
        for imported, other, package in _MODULE.findall(line):
            if explanation := _module(imported or f"{package}.{other}", root, left_out):
                return explanation
        for path_parts in _WORD.findall(line):
            if explanation := _file(next(word for word in path_parts if word), root, left_out):
                return explanation
    return ""


def _file(word: str, root: Path, left_out: Sequence[Left]) -> str:
    path = posixpath.normpath(word)
    while path.startswith("../"):
        path = path[3:]
    parts = path.strip("/").split("/")
    # Of an absolute path, the first parts are of the copy's place on its node.
    for start in range(len(parts) if path.startswith("/") else 1):
        inner = "/".join(parts[start:])
        for left in _holding(inner, root, left_out):
            return _explanation(inner, left, root, left_out)
    return ""


def _holding(path: str, root: Path, left_out: Sequence[Left]) -> list[Left]:
    """Return the entry that holds this path within the folder, or what it leads to, if there is such a file here."""
    place = root / path
    try:
        if not os.path.lexists(place):
            return []
    except ValueError:
        return []
    real = os.path.relpath(os.path.realpath(place), root)
    return [
        left
        for left in left_out
        for each in (path, real)
        if each == left.path.removesuffix("/") or each.startswith(f"{left.path.removesuffix('/')}/")
    ]


def _module(name: str, root: Path, left_out: Sequence[Left]) -> str:
    for left in left_out:
        stem = next((left.path.removesuffix(end) for end in _ENDINGS if left.path.endswith(end)), "")
        parts = left.path.removesuffix("/").split("/") if left.path.endswith("/") else stem.split("/")
        # Its folder may be any one in which Python looks for modules.
        tails = [".".join(parts[start:]) for start in range(len(parts)) if parts[start]]
        if any(name == tail or name.startswith(f"{tail}.") for tail in tails):
            return _explanation(left.path, left, root, left_out)
        if left.kind == "environment" and _installed(name.partition(".")[0], root / left.path):
            return (
                f"{name} is installed in {left.path} of {root}, and environments are not shipped: name its packages in a "
                "requirements file (--requirements, `requirements_file` in a spec)"
            )
    return ""


def _installed(package: str, environment: Path) -> bool:
    places = environment.glob(f"lib/python3*/site-packages/{package}*")
    return any(place.name in (package, f"{package}.py") for place in places)


def _explanation(path: str, left: Left, root: Path, left_out: Sequence[Left]) -> str:
    fact = f"{path} is in {root}, but is not shipped from there"
    if left.kind == "link":
        return f"{fact}, as {left.path} is {left.why}, outside of the folder; {VOLUMES}"
    if left.kind != "rule":
        return f"{fact}: {left.why}"
    line = "!/" + _literal(left.path)
    folder, ending = posixpath.split(left.path)[0], posixpath.splitext(left.path)[1]
    like = [
        other
        for other in left_out
        if (other.why, posixpath.split(other.path)[0], posixpath.splitext(other.path)[1]) == (left.why, folder, ending)
    ]
    also = ""
    if len(like) > 1 and ending:  # An app that misses one of them misses the others next.
        line = f"!/{_literal(f'{folder}/' if folder else '')}*{_literal(ending)}"
        also = f" and {len(like) - 1:,} more"
    large = f"; {VOLUMES}" if left.size >= _LARGE or left.files >= _MANY else ""
    if posixpath.basename(left.source) == OWN:
        return f"{fact}, because of {left.why}{large}"
    return f"{fact}, because of {left.why}: a line {line} in {OWN} ships it{also}{large}"


def _literal(path: str) -> str:
    """Return a path as a rule that matches it alone."""
    return re.sub(r"([\\*?\[\] ])", r"\\\1", path)
