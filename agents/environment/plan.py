"""The parts of a container's environment, its key, and the command that builds it and then becomes the app's own.

Equal requirements, commands and interpreters of one owner share an environment. Apps of different owners never do,
because the builder decides its content.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agents.environment import builder
from agents.runtime.interface import Mount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from events.spec import AppSpec

PROGRAM: Final = "dorm-environment.py"
_SOURCE: Final = Path(builder.__file__).read_text()
"""The builder's source, read once when the agent starts."""


class Environment(msgspec.Struct, frozen=True):
    """One environment on one node."""

    key: str
    """Hex: a hash of everything that it is built from."""
    source: str
    """Its folder on the node."""
    target: str
    """The same as its containers see it."""
    site_packages: bool
    """Whether it sees the packages of the interpreter that it is made with, as in an image that has PyTorch."""


def is_bare(spec: AppSpec) -> bool:
    """Return whether a spec only names the path of a Python, so that nothing has to be built where that is a path of the
    node."""
    return spec.needs_environment and not spec.builds


def key_of(spec: AppSpec, owner: str, base: str) -> str:
    """Return the key of a spec's environment, "" if it needs none. `base` names its base: an image, or
    the node's own interpreter."""
    if not spec.needs_environment:
        return ""
    parts = (spec.requirements, spec.setup, spec.python, owner, base)
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).hexdigest()


def variables(environment: Environment | None) -> Mapping[str, str]:
    """Return Dorm's own variables that the builder sets."""
    return {} if environment is None else {"DORM_ENVIRONMENT": f"{environment.target}/venv"}


def mounts(environment: Environment | None) -> tuple[Mount, ...]:
    """Return how a container sees its environment, if that has its own path there."""
    if environment is None or environment.source == environment.target:
        return ()
    return (Mount("environment", environment.source, environment.target, read_only=False),)


def wrapped(command: tuple[str, ...], environment: Environment | None, folder: str) -> tuple[str, ...]:
    """Return a container's command, which builds the environment first.  `folder` is the container's private one."""
    if environment is None:
        return command
    return ("python3", f"{folder}/{PROGRAM}", environment.target, *command)


def inside(command: tuple[str, ...], environment: Environment | None, folder: str) -> tuple[str, ...]:
    """Return a command that is run in a container whose environment is built."""
    if environment is None:
        return command
    return ("python3", f"{folder}/{PROGRAM}", environment.target, "--inside", *command)


def files(spec: AppSpec, environment: Environment | None, generation: str) -> Mapping[str, str]:
    """Return the files that the builder needs in a container's private folder; `generation` names the generation."""
    if environment is None:
        return {}
    plan = {
        "key": environment.key,
        "generation": generation,
        "requirements": spec.requirements,
        "setup": spec.setup,
        "python": spec.python,
        "site_packages": environment.site_packages,
    }
    return {PROGRAM: _SOURCE, builder.PLAN: msgspec.json.encode(plan).decode()}
