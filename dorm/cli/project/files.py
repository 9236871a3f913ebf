"""`dorm files list|limits|get|purge`: what the cluster keeps of the folders that were shipped to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.output import Format, Output, ago, console, counted, show, show_document
from dorm.cli.sizes import bytes_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.client.client import Client
    from events.workdir import Limits

_USES = [
    ("USER", "tenant"), ("FOLDERS", "folders"), ("PARTS", "parts"), ("SIZE", "size"), ("AT MOST", "most"), ("LATEST", "age"),
]  # fmt: skip
_LEAST_OF_ALL_S, _LEAST_OF_OWN_S = 3600.0, 60.0
app = typer.Typer(help="Manage the project folders that were shipped to the cluster.", no_args_is_help=True)


@app.command("list")
@command(user=True)
async def list_files(cx: Cluster, output: Output = Format.table) -> None:
    """List how much space each user's shipped folders take; plain users see their own.

    [bold]Example[/]

      dorm files list

    JSON: a list of `tenant`, `parts`, `bytes` (compressed), `newest_at` (UTC
    nanoseconds), `folders`: how many different folders its apps name, and
    `quota`: how many bytes they may take.
    """
    from dorm.workdir.using import named, uses
    from events.quantities import MEMORY, SECOND, humanize

    async with cx.client() as connected:
        state = await connected.state()
        listed = await connected.log.files.listed(await _seen_by(connected))
        found, limits = uses(listed, named(state)), await connected.log.files.limits()
    documents = [{**msgspec.to_builtins(one), "quota": limits.quota_of(one.tenant)} for one in found]
    if output in (Format.json, Format.yaml):
        show_document(documents, output)
        return
    if not found:
        console.print(Text("no folder was shipped; `dorm run` ships the current one"))
        return
    now = time.time_ns()
    rows = [
        {
            **one,
            "size": humanize(MEMORY, one["bytes"]),
            "most": humanize(MEMORY, one["quota"]),
            "age": f"{ago((now - one['newest_at']) / SECOND)} ago",
        }
        for one in documents
    ]
    show(rows, _USES, output)


async def _seen_by(connected: Client) -> str:
    """Return whose parts this user may list: the own, unless it operates the cluster or the cluster is open."""
    from dorm.workdir import tenant_of
    from events.log.files import EVERYONE

    known = await connected.glance(lambda state: state.known)
    if known is None or known.operates(connected.user):
        return EVERYONE
    return await tenant_of(connected)


@app.command("limits")
@command(user=True)
async def limits_of_files(
    cx: Cluster,
    file: Annotated[str | None, typer.Option(metavar="SIZE", help="The largest file, such as 512MiB.")] = None,
    total: Annotated[str | None, typer.Option(metavar="SIZE", help="The largest total size of one folder.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="The largest number of files in one folder.")] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long to keep a folder that no app names, such as 30d; at least 1h."),
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The largest total size of one user's folders, compressed, such as 512MiB."),
    ] = None,
    quota_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="USER=SIZE",
            help="The quota of one user; leave the value empty for the general quota. May be repeated.",
        ),
    ] = None,
    output: Output = Format.table,
) -> None:
    """Show or change the limits of shipped folders: their size, each user's quota, and how long they are kept.

    Changes need the role operator. Folders that were shipped before stay, except
    what exceeds a user's quota: a master removes that, starting with files that
    no app names.

    [bold]Examples[/]

      dorm files limits

      dorm files limits --total 4GiB --count 50000 --keep 30d

      dorm files limits --quota 256MiB --quota-of ann=900MiB
    """
    changes = {
        "file": bytes_of("--file", file),
        "total": bytes_of("--total", total),
        "count": count,
        "keep_s": seconds_of("--keep", keep),
        "quota": bytes_of("--quota", quota),
    }
    own = _quotas(quota_of or [])
    changes = {name: value for name, value in changes.items() if value is not None}

    async with cx.client() as connected:
        found = await connected.log.files.limits()
        if changes or own:
            quotas = {name: size for name, size in {**found.quotas, **own}.items() if size is not None}
            found = _changed(found, {**changes, "quotas": quotas})
            await connected.log.files.set_limits(found)
    _show_limits(found, output)


def _quotas(pairs: list[str]) -> dict[str, int | None]:
    """Return quotas by tenant's token from `USER=SIZE`; None for the general one.  Raises WrongUsage."""
    from events.subjects import token

    found: dict[str, int | None] = {}
    for pair in pairs:
        name, sign, size = pair.partition("=")
        if not name or not sign:
            raise WrongUsage(f"--quota-of {pair!r}: write USER=SIZE, such as ann=900MiB", code="usage.quota.malformed")
        found[token(name)] = bytes_of("--quota-of", size) if size else None
    return found


def _changed(limits: Limits, changes: Mapping[str, Any]) -> Limits:
    """Raises WrongUsage."""
    from events.workdir import Limits

    try:
        return msgspec.convert({**msgspec.structs.asdict(limits), **changes}, Limits)
    except msgspec.ValidationError as error:
        option = str(error).rpartition("$.")[2].strip("`").removesuffix("_s")
        text = f"--{option}: {str(error).partition(' - at ')[0].replace('`', '')}"
        raise WrongUsage(text, code="usage.out_of_range") from None


def _show_limits(limits: Limits, output: Format) -> None:
    from events.quantities import MEMORY, humanize

    if output in (Format.json, Format.yaml):
        show_document(msgspec.structs.asdict(limits), output)
        return
    lines = {
        "one file": humanize(MEMORY, limits.file),
        "all files": humanize(MEMORY, limits.total),
        "how many": f"{limits.count:,}",
        "kept for": ago(limits.keep_s),
        "one user": humanize(MEMORY, limits.quota),
        **{f"user {name}": humanize(MEMORY, size) for name, size in sorted(limits.quotas.items())},
    }
    for label, value in lines.items():
        console.print(Text(f"  {label:<10}{value}"))


@app.command("get")
@command(user=True)
async def get(
    cx: Cluster,
    name: AppName,
    to: Annotated[Path, typer.Argument(metavar="FOLDER", help="Target folder, which must not exist.")],
) -> None:
    """Copy the folder with which an app was started, as it was shipped.

    [bold]Example[/]

      dorm files get train train-as-it-ran
    """

    from dorm.workdir.getting import get_folder
    from events.spec import shipped

    async with cx.client() as connected:
        app = await connected.app(name)
        workdir = shipped(app.spec)
        if workdir is None:
            raise Fail(f"{app.name} was started without a shipped folder", code="workdir.none")
        await get_folder(connected.log.files, app.tenant or app.user, workdir.hash, to)
    console.print(Text(f"{to}: {counted(workdir.files, 'file')} of {app.name} ({workdir.hash[:12]})"))


@app.command("purge")
@command(user=True)
async def purge(
    cx: Cluster,
    unused_for: Annotated[
        str,
        typer.Option(
            "--unused-for",
            metavar="DURATION",
            help="Only folders that were not shipped for this time; at least 1h, or 1m for your own.",
        ),
    ] = "1d",
    output: Output = Format.table,
) -> None:
    """Remove folders that no app names and that were not shipped recently: operators for all users, plain users for
    themselves.

    A master does the same by itself, after the time of `dorm files limits`. A
    folder that an app names stays as long as the cluster knows the app.

    [bold]Examples[/]

      dorm files purge --unused-for 12h

      dorm files purge --unused-for 1m
    """
    keep_s = seconds_of("--unused-for", unused_for) or 0.0
    if keep_s < _LEAST_OF_OWN_S:
        raise WrongUsage(
            "--unused-for: at least 1m, so that what you are about to submit stays; of all users' at least 1h"
        )

    from dorm.workdir.using import remove_unneeded
    from events.log.files import EVERYONE
    from events.quantities import MEMORY, humanize

    async with cx.client() as connected:
        state, of = await connected.state(), await _seen_by(connected)
        if of == EVERYONE and keep_s < _LEAST_OF_ALL_S:
            raise WrongUsage(
                "--unused-for: of all users' folders at least 1h, so that nobody loses one who submits now"
            )
        removed = await remove_unneeded(connected.log.files, state, min(time.time_ns(), state.time), keep_s, of=of)
    if output in (Format.json, Format.yaml):
        show_document(msgspec.structs.asdict(removed), output)
    else:
        console.print(Text(f"{counted(removed.parts, 'part')} removed, {humanize(MEMORY, removed.bytes)}"))
