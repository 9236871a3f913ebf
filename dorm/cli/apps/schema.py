"""`dorm schema`: the JSON Schema of app specs."""

from __future__ import annotations

import typer

from dorm.cli.output import Format, show_document
from events.spec import spec_schema


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="More")(schema)


def schema() -> None:
    """Print the JSON Schema of app specs, for editors and other languages.

    [bold]Example[/]

      dorm schema > dorm-app.schema.json
    """
    show_document(spec_schema(), Format.json)
