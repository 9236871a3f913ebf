"""The reference of app specs, from their JSON Schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from docs.site.markdown import code, prose, table
from events.spec import spec_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTRODUCTION = """\
# App specs

A spec is a YAML or TOML file, or the `spec` of an `AppSubmitted` event. [The app contract](../app-contract.md) explains what
a container finds and does. `dorm schema` prints the JSON Schema of such files, for editors and other languages.

## Values as they are typed

What stands without quotes in `command`, `env`, `labels` and other fields that hold texts is the text as you typed it:
`010`, `1:10`, `no`, `1e-4`, `~`, `2024-01-01` and `True` arrive unchanged, and so do keys such as `on` and `NO`. Only an
empty text needs quotes: `""`. Fields that hold numbers, or true and false, take them as YAML does (`yes` is true). Dorm
refuses what readers of YAML disagree about, such as `n_max: 010` or `1:10`, and keys that are there twice.

TOML and JSON have types of their own. In TOML, a number or a date in `command` is taken as it is written; if the file has
the same value in several spellings (`16` and `0x10`), Dorm asks for quotes. In JSON, which programs write, texts need
quotes.

A command reports everything that is wrong with a file at once, with the lines. Programs find all errors in `errors` with
`-o json`, and in the problem documents of the HTTP API.
"""


def page() -> str:
    """The page, in Markdown."""
    schema = spec_schema()
    schema_text = json.dumps(schema, indent=2, ensure_ascii=False)
    return "\n\n".join(
        [
            _INTRODUCTION,
            "## Fields",
            table(("field", "type", "default", "meaning"), _rows(schema, schema)),
            "## JSON Schema",
            f"```json\n{schema_text}\n```\n",
        ]
    )


def _rows(schema: dict[str, Any], root: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Return a row for each field; fields of nested objects have their full names."""
    for name, field in schema["properties"].items():
        full = prefix + name
        inner = _resolved(field, root)
        if "properties" in inner:
            yield from _rows(inner, root, f"{full}.")
            continue
        if name in schema.get("required", ()):
            default = "required"
        else:
            default = code(json.dumps(field["default"])) if "default" in field else ""
        yield code(full), prose(_kind(field, root)), default, prose(field.get("description", ""))


def _resolved(field: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    reference = field.get("$ref") or next((part["$ref"] for part in field.get("allOf", ()) if "$ref" in part), None)
    if reference is None:
        return field
    resolved: dict[str, Any] = root["$defs"][reference.rpartition("/")[2]]
    return resolved


def _kind(field: dict[str, Any], root: dict[str, Any]) -> str:
    field = _resolved(field, root)
    if "enum" in field:
        return " or ".join(json.dumps(value) for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_kind(one, root) for one in field["anyOf"]))
    kind = str(field.get("type", "any"))
    if kind == "array":
        item = field.get("items") or {}
        return f"list of {_kind(item, root)}" if item else "list"
    if kind == "object":
        return f"map of {_kind(field['additionalProperties'], root)}" if field.get("additionalProperties") else "map"
    bounds = [f"{sign} {field[key]}" for sign, key in (("≥", "minimum"), ("≤", "maximum")) if key in field]
    return " ".join([kind, ", ".join(bounds)]).strip()
