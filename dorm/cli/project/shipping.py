"""`workdir: .` of a spec: the folder is shipped, and the spec gets its hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.text import Text

from dorm.cli.output import counted, progress_console

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.client.client import Client
    from dorm.workdir import Shipped
    from events.spec import CheckedSpec

_SHOWN = 3


async def with_workdir(connected: Client, spec: CheckedSpec, base: Path) -> CheckedSpec:
    """Return the spec with the hash of its folder in place of a path, after the folder was shipped; any other spec as it is.
    The path is relative to `base`.  Reports on stderr how much was sent.  Raises Unshippable, and the log's errors."""
    given = spec.workdir
    if not isinstance(given, str):
        return spec
    from dorm.workdir import ship_folder, tenant_of

    tenant = await tenant_of(connected, "" if spec.user == "anonymous" else spec.user)
    with progress_console.status(Text(f"{spec.name}: packing its folder")) as status:

        def tell(sent: int, of: int) -> None:
            status.update(Text(f"{spec.name}: {sent} of {of} parts of its folder sent"))

        shipped = await ship_folder(connected.log.files, tenant, base / given, tell=tell)
    _say(spec.name, shipped)
    return msgspec.structs.replace(spec, workdir=shipped.workdir)


def _say(name: str, shipped: Shipped) -> None:
    for line in shipped.left_out[:_SHOWN]:
        progress_console.print(Text(f"{name}: {line}"), soft_wrap=True)
    if more := shipped.left_out[_SHOWN:]:
        progress_console.print(
            Text(f"{name}: {len(more)} more that are not regular files are left out"), soft_wrap=True
        )
    if shipped.sent:
        from events.quantities import MEMORY, humanize

        folder = f"{counted(shipped.workdir.files, 'file')}, {humanize(MEMORY, shipped.workdir.bytes)}"
        sent = f"{humanize(MEMORY, shipped.sent_bytes)} in {shipped.sent} of {counted(shipped.blobs, 'part')}"
        progress_console.print(Text(f"{name}: shipped its folder ({folder}): {sent} sent"), soft_wrap=True)
