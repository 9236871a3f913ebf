"""`dorm run`: a command as it is typed becomes an app, whose output and exit status are those of this command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.apps import PANEL
from dorm.cli.authoring.fields import (
    After,
    Env,
    EnvFiles,
    Given,
    MaxRuntime,
    Requirements,
    Settings,
    Volumes,
    tell_findings,
    tell_left_out,
)
from dorm.cli.connect import ClusterName, Url, User, client, complete_app, complete_engine, target
from dorm.cli.errors import DONE, FAILED, INTERRUPTED, Fail, WrongUsage, run
from dorm.cli.output import Format, Output, console, progress_console, show_document

if TYPE_CHECKING:
    from dorm.cli.signals import Stops
    from dorm.client.client import Client
    from dorm.core.state import App
    from dorm.local.commands import Typed


def register(app: typer.Typer) -> None:
    # Options after the command's first word are the command's own.
    app.command("run", rich_help_panel=PANEL, context_settings={"allow_interspersed_args": False})(run_app)


def run_app(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command that starts one worker.")],
    n_min: Annotated[
        int, typer.Option("--n-min", min=1, help="The smallest number of containers with which it can run.")
    ] = 1,
    n_max: Annotated[
        int | None,
        typer.Option("--n-max", min=1, help="The largest number of containers that it can use; default: n_min."),
    ] = None,
    cpu: Annotated[str, typer.Option(help="Cores of one container, such as 2 or 500m.")] = "1",
    memory: Annotated[str | None, typer.Option(help="Memory of one container, such as 4GiB.")] = None,
    gpu: Annotated[int | None, typer.Option(min=1, help="GPUs of one container.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the app; default: made from the command.")] = None,
    image: Annotated[str | None, typer.Option(help="Image that contains the program, for nodes with Docker.")] = None,
    workdir: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Ship this folder and run in a copy of it; default: the current folder."),
    ] = None,
    no_workdir: Annotated[
        bool,
        typer.Option(
            "--no-workdir", help="Ship nothing; run in the current folder itself, or in the image's working directory."
        ),
    ] = False,
    folder: Annotated[
        str | None,
        typer.Option(help="Ship nothing; run in this folder: an absolute path on every node, or in the image."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="The engine, such as torchrun; see the field `engine` of specs.", autocompletion=complete_engine
        ),
    ] = "plain",
    env: Env = None,
    env_file: EnvFiles = None,
    requirements: Requirements = None,
    volume: Volumes = None,
    retries: Annotated[int, typer.Option(min=0, help="How often it is restarted after failures.")] = 0,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="APP[@STEP]",
            help="Start from a copy of this app's checkpoint.",
            autocompletion=complete_app,
        ),
    ] = None,
    max_runtime: MaxRuntime = None,
    after: After = None,
    change: Settings = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not follow the output.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the spec and do nothing else.")] = False,
    output: Output = Format.table,
    url: Url = None,
    cluster: ClusterName = None,
    user: User = None,
) -> None:
    """Run a command on the cluster and follow its output.

    The current folder is shipped to the nodes, without the files that .gitignore
    and .dormignore exclude, and each container starts in its own copy. Only parts
    that the cluster does not have are sent. While all nodes run on this machine,
    as with `dorm up`, the program is the one in this shell's path, and `python`
    is this shell's Python, in scripts too; on other clusters, the nodes need the
    program, or --image names an image that contains it. Variables of this shell
    reach the app only with --env NAME.

    The output is printed here; with --n-max above 1, each line is prefixed with
    its rank. The exit code is that of the app, or 1 if it failed without one. In
    a terminal, Ctrl-C asks whether to detach or to cancel; otherwise, an
    interruption cancels the app.

    [bold]Examples[/]

      dorm run -- python train.py --lr 0.1

      dorm run --n-max 4 --cpu 2 --memory 4GiB --retries 3 -- python train.py

      dorm run --engine torchrun --n-max 4 --gpu 1 -- python train_ddp.py

      dorm run --image pytorch/pytorch --gpu 1 -- python train.py

      dorm run --no-workdir -- python -m http.server

      dorm run --image lab/trainer --folder /app -- python train.py

      dorm run --from digits-mlp@120 -- python train.py --resume

      dorm run --volume datasets --requirements requirements.txt -- python train.py

      dorm run --env HF_HOME --env WANDB_MODE=offline -- bash run.sh

      dorm run -- python train.py --out '$DORM_OUTPUTS'

      dorm run --after prepare --max-runtime 12h --set weight=2 -- python train.py

      dorm run --dry-run -o yaml -- python train.py > train.yaml
    """
    from dorm.local.commands import CommandRefused, Typed, document, made_name
    from dorm.local.scripts import check_script
    from events.spec import check_spec

    if not command[0]:
        raise WrongUsage("COMMAND: the first word must be a program's name", code="usage.nothing_to_do")
    if folder is not None and not folder.startswith("/"):
        raise WrongUsage(f"--folder: {folder} is not an absolute path, such as /srv/{folder}")
    if workdir is not None and (no_workdir or folder is not None):
        raise WrongUsage("--workdir ships a folder, and --no-workdir and --folder ship none; leave out one of them")
    demand = {"cpu": cpu, **({"memory": memory} if memory else {}), **({"gpu": str(gpu)} if gpu else {})}
    typed = Typed(
        words=tuple(command),
        demand=demand,
        n_min=n_min,
        n_max=n_max,
        name=name or "",
        image=image or "",
        folder=folder or "",
        workdir="" if no_workdir or folder else (workdir or "."),
        engine=engine,
        fields=Given(env, env_file, requirements, volume, max_runtime, after).fields(),
        settings=tuple(change or ()),
        retries=retries,
        origin=origin or "",
    )
    try:
        if typed.workdir or typed.here:
            check_script(typed.words, Path(typed.workdir or "."))
        spec = document(typed, typed.name or made_name(typed.words))
    except CommandRefused as error:
        raise WrongUsage.of(error) from None
    checked = check_spec(spec)
    tell_findings(checked)
    if dry_run:
        show_document(spec, Format.json if output is Format.json else Format.yaml)
        return
    tell_left_out(checked)
    code = run(_run(typed, detach, output, (url, cluster, user)))
    if code:
        raise typer.Exit(code)


async def _run(typed: Typed, detach: bool, output: Format, where: tuple[str | None, str | None, str | None]) -> int:
    from dorm.cli.signals import stops

    url, cluster, user = where
    async with client(url, cluster, user=user) as connected:
        # Imported only here: `client` imports what they need without the parts that take longest.
        from dorm.cli.apps.attached import attend
        from dorm.cli.apps.waiting import reporting_missing_master
        from dorm.core.query.views import app_row

        if detach:
            app = await _submitted(connected, typed, target(url, cluster).url)
            if output in (Format.json, Format.yaml):
                show_document(app_row(app, time.time_ns()), output)
            else:
                console.print(Text(f"{app.name} is accepted as {app.id}; `dorm logs -f {app.name}` follows it"))
            return DONE
        # From here on, so that an interruption never leaves an unknown app.
        with stops() as signals:
            app = await _submitted_unless_left(connected, typed, target(url, cluster).url, signals)
            progress_console.print(Text(f"{app.name} is accepted as {app.id}"))
            async with reporting_missing_master(connected):
                return await attend(connected, app, signals)
    return FAILED


async def _submitted_unless_left(connected: Client, typed: Typed, url: str, signals: Stops) -> App:
    """Submit it.  One interruption waits for the answer, so that the app can be cancelled; a second one does not."""
    from dorm.cli.signals import first_of

    found: list[App] = []

    async def submit() -> None:
        found.append(await _submitted(connected, typed, url))

    if await first_of(submit(), signals.second.wait()):
        raise Fail(
            "interrupted before the submission was answered; `dorm ps` shows whether it is stored",
            INTERRUPTED,
            code="interrupted",
        )
    return found[0]


async def _submitted(connected: Client, typed: Typed, url: str) -> App:
    from dorm.cli.project.shipping import with_workdir
    from dorm.client.errors import Unsettled
    from dorm.local.commands import check_nodes, document, free_name, made_name
    from events.spec import check_spec

    state = await connected.state()
    local = check_nodes(typed, state.nodes.values(), url)
    name = typed.name or free_name(made_name(typed.words), {app.name for app in state.apps.values()})
    spec = await with_workdir(connected, check_spec(document(typed, name, local=local)), Path.cwd())
    try:
        return await connected.submit(spec)
    except Unsettled as error:
        raise Fail(f"{error}; `dorm ps` shows whether {name} runs", code=error.code) from None
