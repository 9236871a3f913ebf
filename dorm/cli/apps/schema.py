"""`dorm schema`: the JSON Schema of app specs."""

from __future__ import annotations

from dorm.cli.output import Format, show_document


def schema() -> None:
    """Print the JSON Schema of app spec files, for editors and other languages.

    [bold]Example[/]

      dorm schema > dorm-app.schema.json
    """
    from dorm.local.spec_files import file_schema

    show_document(file_schema(), Format.json)
