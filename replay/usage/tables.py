"""Usage as CSV and Parquet: one row for each period, group and resource, with the columns of `replay.usage.usage.Row`.

Times are RFC 3339 in CSV and timestamps in Parquet.  In CSV an unknown figure is an empty cell, a cell that a spreadsheet
would run as a formula begins with an apostrophe, and nothing in a name moves a terminal's cursor.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import msgspec

from events.cloudevents import rfc3339
from replay.usage.usage import Row
from replay.whole_file import ExportError

if TYPE_CHECKING:
    from replay.usage.usage import Usage

_COLUMNS = Row.__struct_fields__
_FORMULA = ("=", "+", "-", "@")


def as_csv(found: Usage) -> bytes:
    """Return lines with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in found.rows:
        plain = msgspec.structs.asdict(row) | {"begin": rfc3339(row.begin), "end": rfc3339(row.end)}
        writer.writerow([_cell(plain[name]) for name in _COLUMNS])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str):
        value = "".join(sign if sign.isprintable() else "\ufffd" for sign in value)
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value


def as_parquet(found: Usage) -> bytes:
    """Return a file of Parquet.  Raises ExportError without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ExportError("Parquet needs pyarrow: pip install 'dorm[arrow]'", code="package.missing") from None
    text, number, time = pyarrow.string(), pyarrow.float64(), pyarrow.timestamp("ns", tz="UTC")
    kinds = {"begin": time, "end": time} | dict.fromkeys(("user", "app", "app_id", "node", "resource", "unit"), text)
    schema = pyarrow.schema([(name, kinds.get(name, number)) for name in _COLUMNS])
    table = pyarrow.Table.from_pylist([msgspec.structs.asdict(row) for row in found.rows], schema=schema)
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, compression="zstd")
    return file.getvalue()
