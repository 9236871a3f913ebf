"""Which container: APP, or APP/RANK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.connect import complete
from dorm.cli.errors import WrongUsage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import State


def split(given: str) -> tuple[str, int | None]:
    """Return the app and the rank, None if none is named.  Raises WrongUsage."""
    app, slash, rank = given.partition("/")
    if not slash:
        return app, None
    if not app or not rank.isdecimal() or len(rank) > 6:
        raise WrongUsage(
            f"{given}: name an app, or an app and a rank, such as train/0", code="usage.container.malformed"
        )
    return app, int(rank)


def complete_container(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of apps, and behind a slash the ranks of one."""

    def names(state: State) -> Iterable[str]:
        app, slash, _ = incomplete.partition("/")
        if not slash:
            return [one.name for one in state.apps.values() if not one.ended]
        found = state.find_app(app)
        current = found.current if found is not None else None
        return [f"{app}/{rank}" for rank in range(len(current.containers))] if current is not None else []

    return complete(ctx, incomplete, names)


Container = Annotated[
    str,
    typer.Argument(
        metavar="APP[/RANK]", help="The app and its rank; default: the first running one.",
        autocompletion=complete_container,
    ),
]  # fmt: skip
