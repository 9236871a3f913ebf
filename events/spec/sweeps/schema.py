"""Fields that turn a spec into several apps, as JSON Schema."""

from __future__ import annotations

from typing import Any

from events.spec.groups import MOST_APPS

_SETTING = {"type": ["boolean", "number", "string"]}
_BOUNDS = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}
_RANGE = {
    "type": "object",
    "properties": {"range": {"anyOf": [{"type": "integer"}, _BOUNDS]}},
    "required": ["range"],
    "additionalProperties": False,
}
_VALUES = {"anyOf": [_SETTING, {"type": "array", "items": _SETTING, "minItems": 1}, _RANGE]}
_NAME = {"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,62}$"}


def fields() -> dict[str, Any]:
    """Return the fields' schemas by name."""
    return {
        "array": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_APPS,
            "description": "so many apps that differ in DORM_ARRAY_INDEX alone",
        },
        "sweep": {
            "description": "parameters with their values, all combinations of which are apps; or the combinations one by one",
            "anyOf": [
                {"type": "object", "propertyNames": _NAME, "additionalProperties": _VALUES, "minProperties": 1},
                {
                    "type": "array",
                    "items": {"type": "object", "propertyNames": _NAME, "additionalProperties": _SETTING},
                    "minItems": 1,
                },
            ],
        },
        "mode": {
            "enum": ["grid", "list"],
            "description": "all combinations, or the first values of all parameters, then the second ones, and so on",
        },
        "parallel": {
            "type": "integer",
            "minimum": 0,
            "maximum": MOST_APPS,
            "description": "how many of the apps may run at once, 0 for no limit",
        },
    }
