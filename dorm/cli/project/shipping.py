"""`workdir: .` of a spec: the folder is shipped, and the spec gets its hash.  What is left out is said, and named again if the app
then misses it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.text import Text

from dorm.cli.output import counted, progress_console

if TYPE_CHECKING:
    from dorm.client.client import Client
    from dorm.core.state import App
    from dorm.workdir import Shipped
    from dorm.workdir.scanning import Scanned
    from events.spec import CheckedSpec


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

        def tell(sent: int, of: int) -> None:
            status.update(Text(f"{spec.name}: {sent} of {of} parts of its folder sent"))

        shipped = await ship_folder(connected.log.files, tenant, base / given, tell=tell)
    _say_left_out(spec, shipped.scanned, show_ignored=show_ignored)
    _say(spec.name, shipped)
    return msgspec.structs.replace(spec, workdir=shipped.workdir)


def show_left_out(spec: CheckedSpec, base: Path) -> None:
    """Print each entry that would be left out of the spec's folder, which is relative to `base`; for a dry run.  Raises
    Unshippable."""
    from dorm.workdir import look_at

    if isinstance(spec.workdir, str):
        _say_left_out(spec, look_at(base / spec.workdir), show_ignored=True)


def _say_left_out(spec: CheckedSpec, scanned: Scanned, *, show_ignored: bool) -> None:
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


def _say(name: str, shipped: Shipped) -> None:
    if shipped.sent:
        from events.quantities import MEMORY, humanize

        folder = f"{counted(shipped.workdir.files, 'file')}, {humanize(MEMORY, shipped.workdir.bytes)}"
        sent = f"{humanize(MEMORY, shipped.sent_bytes)} in {shipped.sent} of {counted(shipped.blobs, 'part')}"
        progress_console.print(Text(f"{name}: shipped its folder ({folder}): {sent} sent"), soft_wrap=True)
