"""`dorm deploy`: the files, keys and first records of a cluster on machines of its own."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.command import standalone
from dorm.cli.deploy.restoring import restore
from dorm.cli.deploy.shared import Keys, Settings, key_folder, read
from dorm.cli.errors import USAGE, Fail, complain
from dorm.cli.output import console
from dorm.cli.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.deploy.installing import Step
    from dorm.deploy.rendering import File, Part
    from dorm.deploy.settings import Deployment
    from dorm.security.folder import KeyFolder

app = typer.Typer(help="Deploy a cluster on several machines, from one settings file.", no_args_is_help=True)
app.command("restore")(restore)


@app.command("example")
def example() -> None:
    """Print a settings file to start from.

    [bold]Example[/]

      dorm deploy example > deploy.yaml
    """
    from dorm.deploy.rendering import TEMPLATES

    say((TEMPLATES / "deploy.yaml").read_text().rstrip("\n"))


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

    found = read(settings)
    if not found.trust:
        raise Fail(
            "a cluster with `trust: false` has no keys; install its files right away", USAGE, code="deploy.keys.open"
        )
    kept = key_folder(folder)
    renewed = prepare(found, kept, token(admin or kept.admin() or login_name()), time.time_ns())
    console.print(Text(f"the keys of cluster {found.cluster} are in {kept.path}; {kept.admin()} is its admin"))
    if renewed:
        console.print(Text(f"new certificates: {', '.join(renewed)}; install their machines again"))
    if write_apply(found, kept):
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

    found = read(settings)
    name = machine or socket.gethostname().split(".")[0]
    has = parts(found, name)
    files = _files(found, name, has, None if folder is None else key_folder(folder))
    if check if check is not None else root == Path("/"):
        _check(found, name, root)
    steps = installing.plan(root, name, files) if dry_run else installing.install(root, name, files, force=force)
    _show(root, steps, dry_run=dry_run)
    if not dry_run:
        _next(name, has, steps, elsewhere=root != Path("/"))


def _files(found: Deployment, name: str, has: Sequence[Part], kept: KeyFolder | None) -> list[File]:
    from dorm.deploy.keys import keys_of
    from dorm.deploy.rendering import rendered

    files = rendered(found, name)
    if not found.trust or {part.name for part in has} == {"node"}:
        return files
    if kept is None:
        raise Fail(
            f"{name} needs keys for its {has[0].name}: name their folder with --keys (`dorm deploy keys` makes it)",
            2,
            code="deploy.keys.missing",
        )
    return [*files, *keys_of(found, name, kept)]


def _check(found: Deployment, name: str, root: Path) -> None:
    from dorm.deploy.facing import lacks

    lacking = lacks(found, name, root)
    for lack in lacking[:-1]:
        complain(lack.text, lack.code)
    if lacking:
        raise Fail(lacking[-1].text, code=lacking[-1].code)


def _show(root: Path, steps: Sequence[Step], *, dry_run: bool) -> None:
    from dorm.deploy.installing import changed

    words = {"new": "would write", "changed": "would change", "removed": "would remove", "edited": "changed by hand"}
    done = {"new": "wrote", "changed": "changed", "removed": "removed", "edited": "replaced"}
    for step in steps:
        if step.fate != "same":
            say(f"{(words if dry_run else done)[step.fate]:<16}{root / step.path.lstrip('/')}")
            if dry_run and step.difference:
                say(step.difference)
    if not changed(steps):
        say(f"all {len(steps)} files are up to date")


def _next(name: str, has: Sequence[Part], steps: Sequence[Step], *, elsewhere: bool) -> None:
    from dorm.deploy.installing import restarts, stops

    units = " ".join(unit for part in has for unit in part.units)
    say(f"next{f', on {name}' if elsewhere else ''}:")
    say("  systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload")
    say(f"  systemctl enable --now {units}")
    if changed := restarts(steps):
        say(f"  systemctl restart {' '.join(changed)}")
    if gone := stops(steps):
        say(f"  systemctl stop {' '.join(gone)}")


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

    from dorm.cli.trust.init import remember
    from dorm.deploy.keys import enable

    own = await enable(deployment, kept, clock=time.time_ns)
    name = context or deployment.cluster
    await asyncio.to_thread(remember, name, own.url, own.cluster, kept.file_of(own.name), folder.absolute())
    console.print(
        Text(f"cluster {own.cluster} authenticates its users; {own.name} is its admin, with the context {name!r}")
    )
    console.print(Text(f"  a user       dorm user add NAME --context {name}"))
    console.print(Text(f"  a node       dorm node intro NAME --context {name}"))
