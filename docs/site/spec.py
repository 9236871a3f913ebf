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
a container finds and does. `dorm schema` prints the JSON Schema below, for editors and other languages.
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
