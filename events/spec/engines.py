"""The engines that an app may have, their options, and which options belong to which engine."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

import msgspec

from events.spec.faults import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

EngineName = Literal["plain", "torchrun", "mpi", "tensorflow", "ps", "elastic"]
ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)


class EngineOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of an app's engine.  An option that the engine does not have is refused."""

    processes: Annotated[
        int,
        msgspec.Meta(
            ge=1, le=1024, description="torchrun, mpi: workers that the engine's launcher starts in each container"
        ),
    ] = 1
    rendezvous: Annotated[
        Literal["static", "c10d"],
        msgspec.Meta(
            description="torchrun: static (ranks are the containers' ranks, and any failure ends the "
            "generation), or c10d (torchrun restarts the workers itself)"
        ),
    ] = "static"
    restarts: Annotated[
        int,
        msgspec.Meta(ge=0, le=1000, description="torchrun with c10d: how often torchrun restarts all workers"),
    ] = 0
    servers: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=100_000,
            description="ps, tensorflow: containers that are parameter servers; default: 1 for ps, none for tensorflow",
        ),
    ] = 0
    workers_per_server: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=100_000,
            description="ps, tensorflow: a ratio instead of `servers`: one server for every N workers or part thereof",
        ),
    ] = 0
    scheduler: Annotated[
        bool,
        msgspec.Meta(
            description="ps: run the command a second time in the first container, as the scheduler of ps-lite and MXNet"
        ),
    ] = False


_LAUNCHED: Final = ("torchrun", "mpi")
_WITH_SERVERS: Final = ("ps", "tensorflow")
_BELONGS: Final[dict[str, tuple[EngineName, ...]]] = {
    "processes": _LAUNCHED,
    "rendezvous": ("torchrun",),
    "restarts": ("torchrun",),
    "servers": _WITH_SERVERS,
    "workers_per_server": _WITH_SERVERS,
    "scheduler": ("ps",),
}


def check_options(engine: EngineName, options: EngineOptions) -> None:
    """Refuse options that do not fit this engine or each other.  Raises SpecError."""
    given = [name for name in options.__struct_fields__ if getattr(options, name) != getattr(EngineOptions(), name)]
    for name in given:
        if engine not in _BELONGS[name]:
            raise SpecError(
                f"engine_options.{name}: the engine {engine} has no such option; it belongs to {' and '.join(_BELONGS[name])}",
                code="spec.engine_options.of_another_engine",
            )
    if options.restarts and options.rendezvous != "c10d":
        raise SpecError(
            "engine_options.restarts: needs `rendezvous: c10d`; with a static one Dorm's own `retries` apply",
            code="spec.engine_options.restarts.without_c10d",
        )
    if options.servers and options.workers_per_server:
        raise SpecError(
            "engine_options.workers_per_server: `servers` already says how many there are; leave out one of the two",
            code="spec.engine_options.servers.given_twice",
        )


_TORCHRUN: Final = frozenset({"torch.distributed.run", "torch.distributed.launch"})
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh"})


def check_command(engine: EngineName, command: Sequence[str]) -> None:
    """Refuse a command that starts torchrun under the engine that does so already: each container would be a training of its
    own, all of them with the same checkpoints.  Raises SpecError."""
    if engine == "torchrun" and _starts_torchrun(command):
        raise SpecError(
            "command: it starts torchrun, and the engine torchrun does that already; write the script alone, "
            "`command: [python, train.py]`, with `engine_options: {processes: N}` for N workers in each container",
            code="spec.command.launches_twice",
        )


def _starts_torchrun(command: Sequence[str]) -> bool:
    arguments = list(command)
    if (
        len(arguments) > 2
        and _program(arguments[0]) in _SHELLS
        and arguments[1].startswith("-")
        and arguments[1].endswith("c")
    ):
        arguments = arguments[2].split()
    arguments = arguments[: _script(arguments)]
    if any(_program(word) == "torchrun" for word in arguments):
        return True
    return any(flag == "-m" and module in _TORCHRUN for flag, module in itertools.pairwise(arguments))


def _program(word: str) -> str:
    return word.rpartition("/")[2]


def _script(arguments: Sequence[str]) -> int:
    """Return where the first Python script is among the words: what follows are its own arguments."""
    return next((index for index, word in enumerate(arguments) if word.endswith(".py")), len(arguments))


def check_role_counts(engine: EngineName, options: EngineOptions, n_min: int) -> None:
    """Refuse an n_min with which some role of the engine would have no container.  Raises SpecError."""
    least, roles = _least(engine, options)
    if n_min < least:
        raise SpecError(
            f"n_min: {n_min} is too few for the engine {engine}, which needs {roles}; write at least {least}",
            code="spec.n_min.below_roles",
        )


def _least(engine: EngineName, options: EngineOptions) -> tuple[int, str]:
    servers = server_count(engine, options, 2)
    counted = "a server" if servers == 1 else f"{servers} servers"
    if engine == "ps":
        return servers + 1, f"{counted} and a worker"
    if engine == "tensorflow" and servers:
        return servers + 2, f"{counted}, a chief and a worker"
    return 1, ""


def server_count(engine: EngineName, options: EngineOptions, size: int) -> int:
    """Return how many of `size` containers should be servers."""
    if engine not in _WITH_SERVERS:
        return 0
    if options.workers_per_server:
        return -(-size // (options.workers_per_server + 1))
    return options.servers or int(engine == "ps")
