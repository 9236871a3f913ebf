"""`dorm deploy` and `dorm backup`: a cluster on machines of its own, from one settings file.

The admin's machine has the folder of keys; the files of each machine are rendered there, or on it.  A backup is a checked
copy of the log, which `restore` makes the log of a cluster that knows its users.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.command import command, standalone
from dorm.cli.connect import Cluster
from dorm.cli.errors import USAGE, Fail, report_error
from dorm.cli.output import Format, Output, console, counted, show_document
from dorm.cli.source import log_of, progress_of
from dorm.cli.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.deploy.installing import Step
    from dorm.deploy.rendering import File, Part
    from dorm.deploy.settings import Deployment
    from dorm.security.folder import KeyFolder


# --- the settings file and the folder of keys -------------------------------------------------------------------------

Settings = Annotated[
    Path,
    typer.Argument(
        metavar="SETTINGS", help="The cluster's machines and their parts; `dorm deploy example` prints one."
    ),
]
Keys = Annotated[
    Path,
    typer.Option(
        "--keys", metavar="DIR", help="Folder of the cluster on its admin's machine, from `dorm deploy keys`."
    ),
]


def read(file: Path) -> Deployment:
    """Return the settings in a file.  Raises Fail."""
    from dorm.deploy.settings import Deployment, DeploymentError, check
    from dorm.local.spec_files import load_document
    from events.documents import shape_of
    from events.spec import SpecError

    try:
        return check(load_document(file, shape_of(Deployment)))
    except SpecError as error:
        raise Fail.of(error, USAGE) from None
    except DeploymentError as error:
        raise Fail(f"{file}: {error}", USAGE, code=error.code) from None


def key_folder(path: Path) -> KeyFolder:
    """Return the keys in a cluster's folder, as `dorm init` has them too."""
    from dorm.local.founding import KEYS
    from dorm.security.folder import KeyFolder

    return KeyFolder(path.absolute() / KEYS)


# --- restore ----------------------------------------------------------------------------------------------------------


@standalone
async def restore(
    settings: Settings,
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="A backup: an archive of the whole log.")],
    keys: Keys,
    without_files: Annotated[
        bool, typer.Option("--without-files", help="Do not copy shipped project folders.")
    ] = False,
) -> None:
    """Restore the log of a cluster from a backup, to running and empty NATS servers.

    Run it on the admin's machine, with masters and agents stopped. Keys, users
    and nodes are those at the end of the backup; later decisions are lost. The
    shipped folders next to the backup are restored too. To continue an
    interrupted import, run the command again.

    [bold]Example[/]

      dorm deploy restore deploy.yaml /mnt/backups/lab-20260314T030007.512Z.dorm --keys /root/lab
    """
    deployment = read(settings)
    if not deployment.trust:
        raise Fail(
            "a cluster with `trust: false` is restored by `dorm replay import`, and its masters then need --replicas once",
            USAGE,
            code="deploy.keys.open",
        )

    from dorm.deploy import layout
    from dorm.deploy.backups import restore_log, restore_shipped
    from events.quantities import MEMORY, humanize

    async with log_of(archive, Cluster()) as log:
        if await log.torn():
            raise Fail("nothing was restored; take an earlier backup", code="archive.damaged")
        with progress_of("restoring") as report:
            done = await restore_log(log, deployment, key_folder(keys), clock=time.time_ns, progress=report)
            shipped = None if without_files else await restore_shipped(archive, deployment, key_folder(keys), report)
    console.print(
        Text(f"{done.records:,} records are the log of cluster {deployment.cluster}; digest {done.digest}"),
        soft_wrap=True,
    )
    if shipped is not None:
        size = humanize(MEMORY, shipped.bytes)
        console.print(Text(f"{counted(shipped.parts, 'part')} of shipped folders, {size}, are restored"))
    console.print(
        Text(
            f"next, on each master's machine: rm -f {layout.MASTER}/seal.seen; systemctl start dorm-master",
            style="dim",
        ),
        soft_wrap=True,
    )


# --- example, keys, install, found ------------------------------------------------------------------------------------

app = typer.Typer(help="Deploy a cluster on several machines, from one settings file.", no_args_is_help=True)
app.command("restore")(restore)


@app.command("example")
def example() -> None:
    """Print a settings file to start from.

    [bold]Example[/]

      dorm deploy example > deploy.yaml
    """
    from dorm.deploy.rendering import TEMPLATES

    print_line((TEMPLATES / "deploy.yaml").read_text().rstrip("\n"))


@app.command("keys")
def keys(
    settings: Settings,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the keys; created if it does not exist.")],
    admin: Annotated[str | None, typer.Option(help="Name of the first admin; default: your login name.")] = None,
) -> None:
    """Create the keys and certificates of a cluster that authenticates its users.

    Only the cluster's admin should have DIR; keep a copy of it in a safe place.
    Run the command again after a change of machines, and once a year: it renews
    certificates that expire within 90 days, and keeps existing keys.

    [bold]Example[/]

      dorm deploy keys deploy.yaml /root/lab
    """
    from dorm.client.client import login_name
    from dorm.deploy.keys import prepare, write_apply
    from events.subjects import token

    deployment = read(settings)
    if not deployment.trust:
        raise Fail(
            "a cluster with `trust: false` has no keys; install its files right away", USAGE, code="deploy.keys.open"
        )
    kept = key_folder(folder)
    renewed = prepare(deployment, kept, token(admin or kept.admin() or login_name()), time.time_ns())
    console.print(Text(f"the keys of cluster {deployment.cluster} are in {kept.path}; {kept.admin()} is its admin"))
    if renewed:
        console.print(Text(f"new certificates: {', '.join(renewed)}; install their machines again"))
    if write_apply(deployment, kept):
        console.print(Text(f"{kept.apply} brings changed accounts to the servers: see that it does"))


@app.command("install")
def install(
    settings: Settings,
    machine: Annotated[
        str | None, typer.Option(help="Machine whose files to write; default: this one, by its host name.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--keys", metavar="DIR", help="Folder of keys, to install the machine's keys as well."),
    ] = None,
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Write below this folder, to set up a machine from another one.")
    ] = Path("/"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also replace files that were changed by hand.")] = False,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check", help="First check programs, mounts and addresses; default: unless --root is given."
        ),
    ] = None,
) -> None:
    """Write a machine's files: systemd units, the NATS server's configuration, folders, and its keys.

    The command starts nothing, and prints what to run next. You can run it again
    at any time: it leaves correct files alone and removes obsolete ones. If a
    file was changed by hand, it ends before it writes anything.

    [bold]Examples[/]

      dorm deploy install deploy.yaml --dry-run

      dorm deploy install deploy.yaml --keys /root/lab

      dorm deploy install deploy.yaml --machine n2 --keys lab --root ./n2
    """
    from dorm.deploy import installing
    from dorm.deploy.rendering import parts

    deployment = read(settings)
    name = machine or socket.gethostname().split(".")[0]
    has = parts(deployment, name)
    files = _files(deployment, name, has, None if folder is None else key_folder(folder))
    if check if check is not None else root == Path("/"):
        _check(deployment, name, root)
    steps = installing.plan(root, name, files) if dry_run else installing.install(root, name, files, force=force)
    _show(root, steps, dry_run=dry_run)
    if not dry_run:
        _next(name, has, steps, elsewhere=root != Path("/"))


def _files(deployment: Deployment, name: str, has: Sequence[Part], kept: KeyFolder | None) -> list[File]:
    from dorm.deploy.keys import keys_of
    from dorm.deploy.rendering import rendered

    files = rendered(deployment, name)
    if not deployment.trust or {part.name for part in has} == {"node"}:
        return files
    if kept is None:
        raise Fail(
            f"{name} needs keys for its {has[0].name}: name their folder with --keys (`dorm deploy keys` makes it)",
            2,
            code="deploy.keys.missing",
        )
    return [*files, *keys_of(deployment, name, kept)]


def _check(deployment: Deployment, name: str, root: Path) -> None:
    from dorm.deploy.rendering import lacks

    lacking = lacks(deployment, name, root)
    for lack in lacking[:-1]:
        report_error(lack.text, lack.code)
    if lacking:
        raise Fail(lacking[-1].text, code=lacking[-1].code)


def _show(root: Path, steps: Sequence[Step], *, dry_run: bool) -> None:
    from dorm.deploy.installing import changed

    planned = {"new": "would write", "changed": "would change", "removed": "would remove", "edited": "changed by hand"}
    done = {"new": "wrote", "changed": "changed", "removed": "removed", "edited": "replaced"}
    for step in steps:
        if step.fate != "same":
            print_line(f"{(planned if dry_run else done)[step.fate]:<16}{root / step.path.lstrip('/')}")
            if dry_run and step.difference:
                print_line(step.difference)
    if not changed(steps):
        print_line(f"all {len(steps)} files are up to date")


def _next(name: str, has: Sequence[Part], steps: Sequence[Step], *, elsewhere: bool) -> None:
    from dorm.deploy.installing import restarts, stops

    units = " ".join(unit for part in has for unit in part.units)
    print_line(f"next{f', on {name}' if elsewhere else ''}:")
    print_line("  systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload")
    print_line(f"  systemctl enable --now {units}")
    if changed := restarts(steps):
        print_line(f"  systemctl restart {' '.join(changed)}")
    if gone := stops(steps):
        print_line(f"  systemctl stop {' '.join(gone)}")


@app.command("found")
@standalone
async def found(settings: Settings, folder: Keys, context: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the context that is created for you; default: the cluster's.")] = None) -> None:  # fmt: skip
    """Create a new cluster's streams and first records, once its NATS servers run.

    Run it on the admin's machine. Running it again changes nothing.

    [bold]Example[/]

      dorm deploy found deploy.yaml --keys /root/lab
    """
    deployment = read(settings)
    if not deployment.trust:
        raise Fail("the masters of a cluster with `trust: false` found it themselves", USAGE, code="deploy.keys.open")
    kept = key_folder(folder)

    from dorm.cli.trust import remember
    from dorm.deploy.keys import enable

    own = await enable(deployment, kept, clock=time.time_ns)
    name = context or deployment.cluster
    await asyncio.to_thread(remember, name, own.url, own.cluster, kept.file_of(own.name), folder.absolute())
    console.print(
        Text(f"cluster {own.cluster} authenticates its users; {own.name} is its admin, with the context {name!r}")
    )
    console.print(Text(f"  a user       dorm user add NAME --context {name}"))
    console.print(Text(f"  a node       dorm node intro NAME --context {name}"))


# --- backup -----------------------------------------------------------------------------------------------------------


@command()
async def backup(
    cx: Cluster,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the copies, preferably on another machine's disk.")
    ],
    keep: Annotated[int, typer.Option(min=1, max=10_000, help="Number of copies of this cluster to keep.")] = 14,
    metrics: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.prom",
            help="Also write the time of the backup to this file, for the textfile collector of "
            "Prometheus's node exporter.",
        ),
    ] = None,
    without_files: Annotated[
        bool, typer.Option("--without-files", help="Do not copy shipped project folders.")
    ] = False,
    output: Output = Format.table,
) -> None:
    """Copy the log and the shipped folders into a folder, read the copy back, and remove the oldest copies.

    All copies share the parts of shipped folders. The cluster keeps running
    meanwhile. If a copy cannot be read back completely, the command ends with an
    error and removes no older copy. `dorm replay import FILE` makes a copy the
    log of a new cluster; `dorm deploy restore` restores a cluster that
    authenticates its users. Copies that are later than the new one, because a
    clock was ahead, neither count for --keep nor are they removed.

    [bold]Examples[/]

      dorm backup /mnt/backups

      dorm backup /mnt/backups --keep 30 --context lab

      dorm backup /mnt/backups --without-files
    """

    from dorm.deploy.backups import back_up, report
    from events.quantities import MEMORY, humanize

    name = cx.target().cluster
    async with log_of(None, cx, folds=False) as log, cx.client() as connected:
        began, files = time.time_ns(), None if without_files else connected.log.files
        with progress_of("copying") as progress:
            done = await back_up(log, folder, name, keep=keep, now=began, files=files, progress=progress)
    if metrics is not None:
        await asyncio.to_thread(report, done, name, began, metrics)
    if output in (Format.json, Format.yaml):
        show_document(done, output)
        return
    went = f"; {len(done.removed)} older removed" if done.removed else ""
    text = f"{done.records:,} records are in {done.file} ({done.bytes:,} bytes), read back; digest {done.digest}{went}"
    console.print(Text(text), soft_wrap=True)
    if done.ahead:
        count = "1 copy is" if len(done.ahead) == 1 else f"{len(done.ahead)} copies are"
        print_line(
            f"warning: {count} later than this one, such as {done.ahead[-1]}: some clock was wrong. --keep neither counts nor "
            "removes them; remove those of the future by hand",
            error=True,
        )
    if done.shipped is not None:
        size = humanize(MEMORY, done.shipped.bytes)
        console.print(Text(f"{counted(done.shipped.parts, 'part')} of shipped folders, {size}, are next to it"))
