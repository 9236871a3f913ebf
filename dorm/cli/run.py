"""`dorm run`: a command as it is typed becomes an app, whose output and exit status are those of this command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli import fields as f
from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import DONE, FAILED, INTERRUPTED, Fail, WrongUsage
from dorm.cli.output import Format, Output, console, progress_console, show_document
from dorm.cli.terminal import in_shell, print_line

if TYPE_CHECKING:
    from dorm.cli.signals import Stops
    from dorm.client.client import Client
    from dorm.core.state import App
    from dorm.local.commands import Typed


@command(user=True, context_settings={"allow_interspersed_args": False})
async def run_app(
    cx: Cluster,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command that starts one worker.")],
    n_min: f.NMin = 1,
    n_max: f.NMax = None,
    cpu: f.Cpu = "1",
    memory: f.Memory = None,
    gpu: f.Gpu = None,
    name: f.Name = None,
    image: f.Image = None,
    workdir: f.Workdir = None,
    no_workdir: f.NoWorkdir = False,
    folder: f.Folder = None,
    engine: f.Engine = "plain",
    env: f.Env = None,
    env_file: f.EnvFiles = None,
    requirements: f.Requirements = None,
    volume: f.Volumes = None,
    retries: f.Retries = 0,
    origin: f.Origin = None,
    max_runtime: f.MaxRuntime = None,
    after: f.After = None,
    resizable: f.Resizable = None,
    change: f.Settings = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not follow the output.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the spec and do nothing else.")] = False,
    show_ignored: f.ShowIgnored = False,
    output: Output = Format.table,
) -> None:
    """Run a command on the cluster and follow its output.

    The current folder is shipped to the nodes, and each container starts in its
    own copy. Files that .dormignore excludes stay here, and so do those that
    .gitignore excludes and git does not track; --show-ignored lists them. Only
    parts that the cluster does not have are sent. While all nodes run on this
    machine, as with `dorm up`, the program is the one in this shell's path, and
    `python` is this shell's Python, in scripts too; on other clusters, the nodes
    need the program, or --image names an image that contains it. Variables of
    this shell reach the app only with --env NAME.

    The output is printed here; with --n-max above 1, each line is prefixed with
    its rank. The exit code is that of the app, or 1 if it failed without one. In
    a terminal, Ctrl-C asks whether to detach or to cancel; otherwise, an
    interruption cancels the app.

    [bold]Examples[/]

      dorm run -- python train.py --lr 0.1

      dorm run --n-max 4 --cpu 2 --memory 4GiB --retries 3 -- python train.py

      dorm run --engine torchrun --n-max 4 --gpu 1 -- python train_ddp.py

      dorm run --n-max 4 --resizable never -- bash run.sh

      dorm run --image pytorch/pytorch --gpu 1 -- python train.py

      dorm run --no-workdir -- python -m http.server

      dorm run --image lab/trainer --folder /app -- python train.py

      dorm run --from digits-mlp@120 -- python train.py --resume

      dorm run --volume datasets --requirements requirements.txt -- python train.py

      dorm run --env HF_HOME --env WANDB_MODE=offline -- bash run.sh

      dorm run -- python train.py --out '$DORM_OUTPUTS'

      dorm run --after prepare --max-runtime 12h --set weight=2 -- python train.py

      dorm run --dry-run -o yaml -- python train.py > train.yaml

      dorm run --dry-run --show-ignored -- python train.py
    """
    from dorm.cli.project import show_left_out
    from dorm.local.commands import CommandRefused, document, made_name
    from dorm.local.scripts import check_script
    from events.spec import check_spec

    typed = f.command_of(
        command,
        cpu=cpu,
        memory=memory,
        gpu=gpu,
        workdir=workdir,
        no_workdir=no_workdir,
        folder=folder,
        n_min=n_min,
        n_max=n_max,
        name=name or "",
        image=image or "",
        engine=engine,
        fields=f.Given(env, env_file, requirements, volume, max_runtime, after).fields()
        | ({"resizable": resizable} if resizable else {}),
        settings=tuple(change or ()),
        retries=retries,
        origin=origin or "",
    )
    try:
        if typed.workdir or typed.here:
            check_script(typed.command, Path(typed.workdir or "."))
        spec = document(typed, typed.name or made_name(typed.command))
    except CommandRefused as error:
        raise WrongUsage.of(error) from None
    checked = check_spec(spec, every=True)
    f.print_findings(checked)
    if dry_run:
        if show_ignored:
            show_left_out(checked, Path())
        if output is not Format.json:
            print_line(f"# {checked.name} runs: {in_shell(checked.command)}")
        show_document(spec, Format.json if output is Format.json else Format.yaml)
        return
    f.print_left_out(checked)
    code = await _run(typed, detach, output, cx, show_ignored=show_ignored)
    if code:
        raise typer.Exit(code)


async def _run(typed: Typed, detach: bool, output: Format, cx: Cluster, *, show_ignored: bool) -> int:
    from dorm.cli.signals import stops

    async with cx.client() as connected:
        # Imported only here: `client` imports what they need without the parts that take longest.
        from dorm.cli.attached import attend
        from dorm.cli.wait import reporting_missing_master
        from dorm.core.query.views import app_row

        if detach:
            app = await _submitted(connected, typed, cx.target().url, show_ignored)
            if output in (Format.json, Format.yaml):
                show_document(app_row(app, time.time_ns()), output)
            else:
                console.print(Text(f"{app.name} is accepted as {app.id}; `dorm logs -f {app.name}` follows it"))
            return DONE
        # From here on, so that an interruption never leaves an unknown app.
        with stops() as signals:
            app = await _submitted_unless_left(connected, typed, cx.target().url, signals, show_ignored)
            progress_console.print(Text(f"{app.name} is accepted as {app.id}"))
            async with reporting_missing_master(connected):
                return await attend(connected, app, signals, Path(typed.workdir or "."))
    return FAILED


async def _submitted_unless_left(connected: Client, typed: Typed, url: str, signals: Stops, show_ignored: bool) -> App:
    """Submit it.  One interruption waits for the answer, so that the app can be cancelled; a second one does not."""
    from dorm.cli.signals import first_of

    apps: list[App] = []

    async def submit() -> None:
        apps.append(await _submitted(connected, typed, url, show_ignored))

    if await first_of(submit(), signals.second.wait()):
        raise Fail(
            "interrupted before the submission was answered; `dorm ps` shows whether it is stored",
            INTERRUPTED,
            code="interrupted",
        )
    return apps[0]


async def _submitted(connected: Client, typed: Typed, url: str, show_ignored: bool) -> App:
    from dorm.cli.project import with_workdir
    from dorm.client.errors import Unsettled
    from dorm.local.commands import check_nodes, document, free_name, made_name
    from events.spec import check_spec

    state = await connected.state()
    local = check_nodes(typed, state.nodes.values(), url)
    name = typed.name or free_name(made_name(typed.command), {app.name for app in state.apps.values()})
    checked = check_spec(document(typed, name, local=local))
    spec = await with_workdir(connected, checked, Path.cwd(), show_ignored=show_ignored)
    try:
        return await connected.submit(spec)
    except Unsettled as error:
        raise Fail(f"{error}; `dorm ps` shows whether {name} runs", code=error.code) from None
