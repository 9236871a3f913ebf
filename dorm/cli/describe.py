"""`dorm describe`: everything about one app."""

from __future__ import annotations

import time
from typing import Any

import typer
from rich.text import Text

from dorm.cli.apps import PANEL
from dorm.cli.connect import AppName, ClusterName, Url, client
from dorm.cli.errors import run
from dorm.cli.output import Format, Output, ago, cell, console, counted, show, show_document


def register(app: typer.Typer) -> None:
    app.command("describe", rich_help_panel=PANEL)(describe_app)


def describe_app(app: AppName, output: Output = Format.table, url: Url = None, cluster: ClusterName = None) -> None:
    """Everything about one app: where its containers are, what its adjustments cost, how it ended.

    [bold]Example[/]

      dorm describe digits-mlp
    """
    from dorm.core.views import describe

    async def work() -> None:
        async with client(url, cluster) as connected:
            document = describe(await connected.app(app), time.time_ns())
        if output in (Format.json, Format.yaml):
            show_document(document, output)
        else:
            _print_description(document)

    run(work())


def _print_description(d: dict[str, Any]) -> None:
    lines = [
        ("id", d["id"]), ("user", d["user"]), ("phase", d["phase"]), ("note", d["note"]),
        ("containers", f"{d['containers']} on {counted(d['nodes'], 'node')} (n_min {d['n_min']}, n_max {d['n_max']}, weight {d['weight']:g})"),
        ("of each", ", ".join(d["demand"].values())), ("generation", d["generation"]),
        ("progress", f"step {d['step']}" + (f", loss {d['loss']:.6g}" if d["loss"] is not None else "")
         + (f", {d['samples_per_s']:.4g} samples/s" if d["samples_per_s"] is not None else "")),
        ("checkpoint", "none yet" if d["checkpoint"] is None else f"step {d['checkpoint']}"),
        ("age", ago(d["age_s"])), ("failures", d["failures"]),
        ("adjustments", f"{d['adjustments']}, {d['lost_steps']} steps lost"),
    ]  # fmt: skip
    console.print(Text(d["name"], style="bold"))
    for label, value in lines:
        if value != "":
            console.print(Text(f"  {label:<12}").append(cell(value)))
    _print_rows("containers", d["containers_now"], [
        ("SLOT", "slot"), ("NODE", "node"), ("STATE", "state"), ("ADDRESS", "address"), ("PORT", "port"),
        ("EXIT", "exit_code"), ("REASON", "reason"), ("NOTE", "message"),
    ])  # fmt: skip
    _print_rows("adjustments", [_in_seconds(row) for row in d["adjustments_done"]], [
        ("FROM", "from_generation"), ("TO", "to_generation"), ("SIZE", "containers"), ("STOP s", "stop_s"),
        ("WAIT s", "wait_s"), ("START s", "start_s"), ("TOTAL s", "total_s"), ("CHECKPOINT", "checkpoint"),
        ("LOST", "lost_steps"),
    ])  # fmt: skip


def _in_seconds(row: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{value:.3f}" if name.endswith("_s") and value is not None else value for name, value in row.items()}


def _print_rows(title: str, rows: list[dict[str, Any]], columns: list[tuple[str, str]]) -> None:
    if rows:
        console.print(Text(f"\n{title}", style="bold"))
        show(rows, columns, Format.table)
