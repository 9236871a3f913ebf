"""The decorator that makes a command of a coroutine.

    @command(user=True)
    async def hold(cx: Cluster, apps: AppNames, reason: Reason = "") -> None:
        \"\"\"Hold apps: they get no containers until `dorm release`. …\"\"\"
        async with cx.client() as connected:
            ...

The command gets the options of its other parameters, as typer reads them from their annotations, and those that say which
cluster it is about: `--context`, `--credentials`, `--archives`, `--url`, `--cluster`, and with `user` also `--user`
(`dorm.cli.connect`).  Their values are the `Cluster`.  What the coroutine raises becomes one line and an exit code
(`dorm.cli.errors`).

A command that is about no cluster is a plain function, or a coroutine with `standalone`.  Each has a line in `main.COMMANDS`,
or is a subcommand of a typer application that has one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import cached_property, update_wrapper, wraps
from typing import Any, Concatenate, ParamSpec, cast, get_type_hints

from dorm.cli.connect import OPTIONS, Cluster
from dorm.cli.errors import run

Own = ParamSpec("Own")
"""Parameters of a command's own."""


def command(
    *, user: bool = False, before: str = "", **settings: Any
) -> Callable[[Callable[Concatenate[Cluster, Own], Coroutine[Any, Any, None]]], Callable[Own, None]]:
    """Make a command of a coroutine that takes a `Cluster` first.

    `user`: whether it makes requests, and therefore has `--user`.  `before`: the parameter whose option is listed after those
    of the cluster; default: they are the last.  An option of the cluster's that the coroutine has itself is its own.
    `settings`: what typer is to know of the command, such as `cls`."""

    def decorate(work: Callable[Concatenate[Cluster, Own], Coroutine[Any, Any, None]]) -> Callable[Own, None]:
        return cast("Callable[Own, None]", _Command(work, user, before, settings))

    return decorate


class _Command:
    """What typer calls, with a signature that is made when it is looked at: a module has many commands, of which one runs."""

    def __init__(
        self, work: Callable[..., Coroutine[Any, Any, None]], user: bool, before: str, settings: dict[str, Any]
    ) -> None:
        self._work = work
        self._user = user
        self._before = before
        self.settings = settings
        update_wrapper(self, work, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())

    def __call__(self, **given: Any) -> None:
        cluster = Cluster(**{name: given.pop(name) for name in self._names})
        run(self._work(cluster, **given))

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self._work, include_extras=True)

    @cached_property
    def _names(self) -> list[str]:
        """Names of the cluster's options that the command gets."""
        return [name for name in OPTIONS if name not in self._hints and (self._user or name != "user")]

    @cached_property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.KEYWORD_ONLY
        _, *own = inspect.signature(self._work).parameters.values()
        place = next(
            index for index, parameter in enumerate([*own, None]) if parameter is None or parameter.name == self._before
        )
        parameters = [parameter.replace(kind=kind, annotation=self._hints[parameter.name]) for parameter in own]
        parameters[place:place] = [
            inspect.Parameter(name, kind, default=None, annotation=OPTIONS[name]) for name in self._names
        ]
        return inspect.Signature(parameters)

    @cached_property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]  # typer reads them, as of any function
        return {name: parameter.annotation for name, parameter in self.__signature__.parameters.items()}


def standalone(work: Callable[Own, Coroutine[Any, Any, None]]) -> Callable[Own, None]:
    """Make a command of a coroutine that no option points to a cluster."""

    @wraps(work)
    def called(*given: Own.args, **named: Own.kwargs) -> None:
        run(work(*given, **named))

    return called
