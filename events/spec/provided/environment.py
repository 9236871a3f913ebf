"""What an app's environment is built of: Python packages, commands, an interpreter.

A spec holds the requirements themselves, not the name of a file: a node has no file of the submitter's, and the log says what
an app ran with.  `requirements_file` of a spec file is read by the client (`dorm.local.spec_files`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from events.quantities import short
from events.spec.faults import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LONGEST_REQUIREMENTS = 5000
"""Lines."""
Requirements = Annotated[
    list[Annotated[str, msgspec.Meta(min_length=1, max_length=16_384)]],
    msgspec.Meta(
        max_length=LONGEST_REQUIREMENTS,
        description="Python packages, installed once on each node into an environment of the app's own; each as in a "
        "line of a requirements.txt; in files, `requirements_file` names a requirements.txt or a uv.lock instead",
        examples=[["numpy>=2", "einops"]],
    ),
]
Setup = Annotated[
    list[Annotated[str, msgspec.Meta(min_length=1, max_length=16_384)]],
    msgspec.Meta(
        max_length=64,
        description="shell commands that are run once on each node, in that environment, after its packages are installed",
        examples=[["pip install --no-deps mypackage", "python -m nltk.downloader punkt"]],
    ),
]
PythonVersion = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(3\.[0-9]{1,2}|/[^\x00-\x1f\x7f]{1,4094})?$",
        description="which Python runs plain processes: a version such as '3.12', of those that nodes have, or the path of "
        "one, whose programs come first in PATH, and on whose packages those of `requirements` build; default: the one of "
        "the shell that submits the app if all nodes are this machine and run plain processes, else the node's; images "
        "bring their own",
        examples=["3.12", "/home/ann/project/.venv/bin/python"],
    ),
]
_LOCAL = re.compile(r"(-r|--requirement|-c|--constraint|-e|--editable)\b|\.{0,2}/|\.$|file:(?!///)", re.IGNORECASE)
"""Lines that refer to files beside the requirements."""


def check_environment_form(document: Mapping[Any, Any]) -> None:
    """Refuse what people write for lists and versions.  Raises SpecError."""
    python = document.get("python")
    if isinstance(python, float | int):
        raise SpecError(
            f"python: write the version in quotes, such as '3.12', not {python}: 3.10 would be 3.1",
            code="spec.python.not_quoted",
        )
    for name in ("requirements", "setup"):
        if isinstance(document.get(name), str):
            more = "; requirements_file names a file" if name == "requirements" else ""
            raise SpecError(
                f"{name}: expected a list, got {short(document[name])}; put it in brackets{more}",
                code=f"spec.{name}.wrong_type",
            )


def check_environment(requirements: Sequence[str], python: str) -> None:
    """Refuse requirements that need files which no node has.  Raises SpecError."""
    for index, line in enumerate(requirements):
        if "\n" in line or "\r" in line:
            raise SpecError(
                f"requirements[{index}]: write one requirement in each entry, without line ends",
                code="spec.requirements.malformed",
            )
        if _LOCAL.match(line.strip()):
            raise SpecError(
                f"requirements[{index}]: {short(line)} refers to a file, which nodes do not have; write the packages "
                "themselves, or install it in `setup` from a path that every node has",
                code="spec.requirements.local",
            )
    if python.endswith("\n"):
        raise SpecError("python: can't hold a line end", code="spec.python.malformed")
