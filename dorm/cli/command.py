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

A command that is about no cluster is a plain function, or a coroutine with `standalone`.  All are found by its line in `main.COMMANDS`, or are subcommands of a typer
application that has such a line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import update_wrapper, wraps
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
        hints = get_type_hints(work, include_extras=True)
        own = [one.replace(annotation=hints[one.name]) for one in inspect.signature(work).parameters.values()][1:]
        names = [name for name in OPTIONS if name not in hints and (user or name != "user")]
        kind = inspect.Parameter.KEYWORD_ONLY
        place = next(index for index, one in enumerate([*own, None]) if one is None or one.name == before)
        parameters = [one.replace(kind=kind) for one in own]
        parameters[place:place] = [
            inspect.Parameter(name, kind, default=None, annotation=OPTIONS[name]) for name in names
        ]

        start: Callable[..., Coroutine[Any, Any, None]] = work

        def called(**given: Any) -> None:
            cluster = Cluster(**{name: given.pop(name) for name in names})
            run(start(cluster, **given))

        update_wrapper(called, work)
        # This is where typer looks for the parameters.
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        called.__dict__["settings"] = settings
        return cast("Callable[Own, None]", called)

    return decorate


def standalone(work: Callable[Own, Coroutine[Any, Any, None]]) -> Callable[Own, None]:
    """Make a command of a coroutine that no option points to a cluster."""

    @wraps(work)
    def called(*given: Own.args, **named: Own.kwargs) -> None:
        run(work(*given, **named))

    return called
