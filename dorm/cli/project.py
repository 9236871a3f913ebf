"""Project folders: a `workdir: .` is shipped with `dorm run` and `dorm submit`, and `dorm files` manages what was shipped.

The spec gets the folder's hash.  What is left out is listed, and named again if the app fails because it misses it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.options import bytes_of, seconds_of
from dorm.cli.output import Format, Output, ago, console, counted, progress_console, show, show_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.client.client import Client
    from dorm.core.state import App
    from dorm.workdir import Shipped
    from dorm.workdir.scanning import Scanned
    from events.spec import CheckedSpec
    from events.workdir import Limits


# --- shipping a folder ------------------------------------------------------------------------------------------------


async def with_workdir(connected: Client, spec: CheckedSpec, base: Path, *, show_ignored: bool = False) -> CheckedSpec:
    """Return the spec with the hash of its folder in place of a path, after the folder was shipped; any other spec as it is.
    The path is relative to `base`.  Reports on stderr what is left out, each entry with `show_ignored`, and how much was sent.
    Raises Unshippable, and the log's errors."""
    given = spec.workdir
    if not isinstance(given, str):
        return spec
    from dorm.workdir import ship_folder, tenant_of

    tenant = await tenant_of(connected, "" if spec.user == "anonymous" else spec.user)
    with progress_console.status(Text(f"{spec.name}: packing its folder")) as status:

        def report(sent: int, of: int) -> None:
            status.update(Text(f"{spec.name}: {sent} of {of} parts of its folder sent"))

        shipped = await ship_folder(connected.log.files, tenant, base / given, report=report)
    _print_left_out(spec, shipped.scanned, show_ignored=show_ignored)
    _print_shipped(spec.name, shipped)
    return msgspec.structs.replace(spec, workdir=shipped.workdir)


def show_left_out(spec: CheckedSpec, base: Path) -> None:
    """Print each entry that would be left out of the spec's folder, which is relative to `base`; for a dry run.  Raises
    Unshippable."""
    from dorm.workdir import look_at

    if isinstance(spec.workdir, str):
        _print_left_out(spec, look_at(base / spec.workdir), show_ignored=True)


def _print_left_out(spec: CheckedSpec, scanned: Scanned, *, show_ignored: bool) -> None:
    from dorm.workdir.leaving import listed, notices_of, summary_of

    lines = notices_of(scanned, volumes=bool(spec.volumes))
    if summary := summary_of(scanned.left_out):
        lines = [f"left out: {summary}" + ("" if show_ignored else "; --show-ignored lists them"), *lines]
    for line in lines:
        progress_console.print(Text(f"{spec.name}: {line}"), soft_wrap=True)
    for line in listed(scanned.left_out) if show_ignored else ():
        progress_console.print(Text(f"  {line}"), soft_wrap=True)


async def missing_in(app: App, folder: Path | None, output: str = "") -> str:
    """Return which file or module a failed app misses that is in `folder` and was not shipped, by the end of its output and
    its reason; "" if none, or if its spec ships nothing.  None: the current folder."""
    from dorm.workdir.leaving import explained, misses
    from events.spec import Workdir

    text = f"{app.end_reason}\n{output}"
    if app.ended != "failed" or not isinstance(app.spec.workdir, Workdir) or not misses(text):
        return ""
    return await asyncio.to_thread(explained, text, folder or Path.cwd())


def _print_shipped(name: str, shipped: Shipped) -> None:
    if shipped.sent:
        from events.quantities import MEMORY, humanize

        folder = f"{counted(shipped.workdir.files, 'file')}, {humanize(MEMORY, shipped.workdir.bytes)}"
        sent = f"{humanize(MEMORY, shipped.sent_bytes)} in {shipped.sent} of {counted(shipped.blobs, 'part')}"
        progress_console.print(Text(f"{name}: shipped its folder ({folder}): {sent} sent"), soft_wrap=True)


# --- what the cluster keeps of shipped folders ------------------------------------------------------------------------

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
    from dorm.workdir.keeping import named, uses
    from events.quantities import MEMORY, SECOND, humanize

    async with cx.client() as connected:
        state = await connected.state()
        listed = await connected.log.files.listed(await _seen_by(connected))
        used, limits = uses(listed, named(state)), await connected.log.files.limits()
    documents = [{**msgspec.to_builtins(use), "quota": limits.quota_of(use.tenant)} for use in used]
    if output in (Format.json, Format.yaml):
        show_document(documents, output)
        return
    if not used:
        console.print(Text("no folder was shipped; `dorm run` ships the current one"))
        return
    now = time.time_ns()
    rows = [
        {
            **document,
            "size": humanize(MEMORY, document["bytes"]),
            "most": humanize(MEMORY, document["quota"]),
            "age": f"{ago((now - document['newest_at']) / SECOND)} ago",
        }
        for document in documents
    ]
    show(rows, _USES, output)


async def _seen_by(connected: Client) -> str:
    """Return whose parts this user may list: the own, unless it operates the cluster or the cluster is open."""
    from dorm.workdir import tenant_of
    from events.log.stores import EVERY_TENANT

    known = await connected.glance(lambda state: state.known)
    if known is None or known.operates(connected.user):
        return EVERY_TENANT
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
        limits = await connected.log.files.limits()
        if changes or own:
            quotas = {name: size for name, size in {**limits.quotas, **own}.items() if size is not None}
            limits = _changed(limits, {**changes, "quotas": quotas})
            await connected.log.files.set_limits(limits)
    _show_limits(limits, output)


def _quotas(pairs: list[str]) -> dict[str, int | None]:
    """Return quotas by tenant's token from `USER=SIZE`; None for the general one.  Raises WrongUsage."""
    from events.subjects import token

    quotas: dict[str, int | None] = {}
    for pair in pairs:
        name, sign, size = pair.partition("=")
        if not name or not sign:
            raise WrongUsage(f"--quota-of {pair!r}: write USER=SIZE, such as ann=900MiB", code="usage.quota.malformed")
        quotas[token(name)] = bytes_of("--quota-of", size) if size else None
    return quotas


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

    from dorm.workdir.shipping import get_folder
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

    from dorm.workdir.keeping import remove_unneeded
    from events.log.stores import EVERY_TENANT
    from events.quantities import MEMORY, humanize

    async with cx.client() as connected:
        state, of = await connected.state(), await _seen_by(connected)
        if of == EVERY_TENANT and keep_s < _LEAST_OF_ALL_S:
            raise WrongUsage(
                "--unused-for: of all users' folders at least 1h, so that nobody loses one who submits now"
            )
        removed = await remove_unneeded(connected.log.files, state, min(time.time_ns(), state.time), keep_s, of=of)
    if output in (Format.json, Format.yaml):
        show_document(msgspec.structs.asdict(removed), output)
    else:
        console.print(Text(f"{counted(removed.parts, 'part')} removed, {humanize(MEMORY, removed.bytes)}"))
