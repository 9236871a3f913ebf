"""Events as rows for analysis: Parquet, lines of JSON, lines of CloudEvents; one row per event, so a round has several.

position   118, or 118.2 in a round: unique, and the same in every tool
seq, index its two parts; index is null for an event with a record of its own
log_time   UTC: nanoseconds in Parquet, RFC 3339 in JSON
kind       AppSubmitted, Resized, …
app, node  the app or node that it is about, if it is about one
user       the app's user, else the client that published it
by, id     the publisher and the event's id
body       the whole event: a map in lines of JSON, its text in Parquet
"""

from __future__ import annotations

import contextlib
import gzip
from abc import abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec
import zstandard

from dorm.core.admission import app_id, name_of
from events import kinds as k
from events import subjects
from events.cloudevents import cloud_event, plain, rfc3339
from events.identities import tenant_in
from events.positions import Logged, logged
from replay.export.sink import FileFormat, Sink
from replay.whole_file import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dorm.core.state import State
    from events.log.records import Record
    from replay.export.selection import Sieve
    from replay.frames import Snapshot

_GROUP = 32_768
"""Rows that are written to Parquet at once."""
_REMEMBERED = 100_000
"""Apps, and unanswered submissions, whose users are remembered at a time."""
_PEOPLE = ("user", "operator", "admin")
_CLIENTS = tuple(kind for kind in k.EVENTS if kind.KIND.writers[0] in _PEOPLE)
"""Kinds that people publish, through clients."""
_encode = msgspec.json.Encoder().encode


def table(form: FileFormat, file: BinaryIO, path: Path, cluster: str, sieve: Sieve, state: State | None) -> Sink:
    """Return a sink that writes rows into a file.  `state` is the state before the first record, if it is known.

    Raises ExportError if a library is missing."""
    users = Users(state)
    if form is FileFormat.parquet:
        return _Parquet(file, sieve, users, cluster)
    return _Lines(file, path.suffix, sieve, users, cloudevents=form is FileFormat.cloudevents)


class _Rows(Sink):
    """Takes events one by one; those not selected only show which user an app belongs to."""

    def __init__(self, sieve: Sieve, users: Users) -> None:
        self.records = 0
        self.rows: int = 0
        self._sieve = sieve
        self._users = users

    def take(self, records: list[Record], due: list[Snapshot]) -> None:
        for record in records:
            before = self.rows
            for entry in logged(record):
                user = self._users.of(entry)
                if self._sieve.wants(entry):
                    self.rows += 1
                    self._take(entry, user)
            self.records += self.rows > before
        with _one_line():
            self._write()

    def finish(self) -> None:
        with _one_line():
            self._end()

    @abstractmethod
    def _take(self, entry: Logged, user: str | None) -> None: ...

    @abstractmethod
    def _write(self) -> None:
        """Write the events taken so far, if there are enough."""

    @abstractmethod
    def _end(self) -> None: ...


class Users:
    """The user of each app: learned from submissions and answers, in the log's order."""

    def __init__(self, state: State | None) -> None:
        self._users: OrderedDict[str, str] = OrderedDict()
        """Users by app, and by submission until that is answered."""
        if state is not None:
            for submission in state.submissions.values():
                self._learn(submission.id, submission.by)
            for app in state.apps.values():
                self._learn(app.id, app.user)

    def of(self, entry: Logged) -> str | None:
        event: Any = entry.event
        if isinstance(event, k.AppSubmitted):
            named = event.spec.get("user") if isinstance(event.spec, dict) else None
            user = named if isinstance(named, str) and named != "anonymous" else event.by
            if tenant_in(event.id):
                user = subjects.who_of(entry.subject)
            self._learn(event.id, user)
            return user
        if isinstance(event, k.AppAccepted):
            by = self._users.pop(event.submission, None)
            user = event.spec.user if event.spec.user != "anonymous" or by is None else by
            self._learn(event.app, user)
            return user
        if isinstance(event, k.AppRejected):
            return self._users.pop(event.submission, None)
        known = self._users.get(getattr(event, "app", ""))
        return known or (subjects.who_of(entry.subject) if isinstance(event, _CLIENTS) else None)

    def _learn(self, what: str, user: str) -> None:
        self._users[what] = user
        if len(self._users) > _REMEMBERED:
            self._users.popitem(last=False)


def row(entry: Logged, user: str | None) -> dict[str, Any]:
    """Return an event by the columns above; `body` as JSON, `log_time` in UTC nanoseconds."""
    event: Any = entry.event
    app = getattr(event, "app", None) or None
    if isinstance(event, k.AppSubmitted) and (name := name_of(event.spec)):
        app = app_id(name, event.id)
    said_in = entry.round
    return {
        "position": str(entry.position),
        "seq": entry.position.seq,
        "index": entry.position.index,
        "log_time": entry.time,
        "kind": type(event).__name__,
        "app": app,
        "node": getattr(event, "node", None) or None,
        "user": user,
        "by": event.by or (said_in.by if said_in else ""),
        "id": event.id or (said_in.id if said_in else ""),
        "body": _json(event),
    }


def _json(event: k.Event) -> bytes:
    try:
        return _encode(event)
    except (TypeError, ValueError, RecursionError):
        return _encode(plain(event))  # A client's spec may hold values that JSON cannot express.


class _Lines(_Rows):
    """Lines of JSON, compressed by the ending of the name."""

    def __init__(self, file: BinaryIO, suffix: str, sieve: Sieve, users: Users, *, cloudevents: bool) -> None:
        super().__init__(sieve, users)
        self._cloudevents = cloudevents
        self._lines: list[bytes] = []
        self._file = file
        self._packed: BinaryIO | None = None
        if suffix == ".gz":
            # Without a timestamp, equal exports have equal bytes.
            self._packed = cast("BinaryIO", gzip.GzipFile("", "wb", 6, file, mtime=0))
        elif suffix == ".zst":
            self._packed = cast("BinaryIO", zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False))

    def _take(self, entry: Logged, user: str | None) -> None:
        if self._cloudevents:
            made = cloud_event(entry)
        else:
            made = row(entry, user)
            made["log_time"] = rfc3339(made["log_time"])
            made["body"] = msgspec.Raw(made["body"])
        self._lines.append(_encode(made) + b"\n")

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        (self._packed or self._file).write(b"".join(lines))

    def _end(self) -> None:
        if self._packed is not None:
            self._packed.close()
        self._file.flush()


class _Parquet(_Rows):
    """Columns by pyarrow, which comes with Dorm's extra `arrow`."""

    def __init__(self, file: BinaryIO, sieve: Sieve, users: Users, cluster: str) -> None:
        super().__init__(sieve, users)
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ExportError("Parquet needs pyarrow: pip install 'dorm[arrow]'", code="package.missing") from None
        text = pyarrow.string()
        fields = {
            "position": text, "seq": pyarrow.int64(), "index": pyarrow.int32(),
            "log_time": pyarrow.timestamp("ns", tz="UTC"), "kind": text, "app": text, "node": text, "user": text,
            "by": text, "id": text, "body": text,
        }  # fmt: skip
        self._schema = pyarrow.schema(fields.items(), metadata={"dorm.cluster": cluster})
        self._table = pyarrow.Table
        self._waiting: list[dict[str, Any]] = []
        self._file = file
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")

    def _take(self, entry: Logged, user: str | None) -> None:
        made = row(entry, user)
        made["body"] = made["body"].decode()
        self._waiting.append(made)

    def _write(self) -> None:
        if len(self._waiting) >= _GROUP:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._writer.write_table(self._table.from_pylist(waiting, schema=self._schema))

    def _end(self) -> None:
        self._flush()
        self._writer.close()
        self._file.flush()


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Turn errors of writing into ExportError, except a closed pipe, which is not an error of the export."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ExportError(f"the file can't be written: {error.strerror or error}") from None
