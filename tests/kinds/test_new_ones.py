"""A new kind of event and a new field of the spec are written in few places: tried on a copy of the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("events", "agents", "dorm", "replay")

NEW_KIND = {
    "events/kinds/gates.py": [
        (
            "OfGates = AppHoldRequested | AppReleaseRequested",
            'class AppPraised(Event, frozen=True):\n    """A user praises an app."""\n\n'
            '    KIND: ClassVar[Kind] = Kind(writers=("user",), rule="changes_app", on="app", by_name=True, folded=False)\n\n'
            '    app: AppName\n    words: FreeText = ""\n    silent: str = ""\n\n\n'
            "OfGates = AppHoldRequested | AppReleaseRequested | AppPraised",
        )
    ],
    "events/kinds/__init__.py": [("import AppHoldRequested,", "import AppHoldRequested, AppPraised,")],
    "dorm/core/evolve.py": [
        ("_HANDLERS: dict[type, Handler] = {", "_HANDLERS: dict[type, Handler] = {\n    k.AppPraised: concerns_no_state,")
    ],
}  # fmt: skip
NEW_FIELD = {
    "events/spec/spec.py": [
        (
            '    user: Annotated[User, never()] = "anonymous"',
            '    nickname: Annotated[str, msgspec.Meta(max_length=20), live(needs="workdir"), holds("text")] = ""\n'
            '    silent: str = ""\n'
            '    user: Annotated[User, never()] = "anonymous"',
        )
    ],
}
OF_THE_KIND = """
import msgspec
from dorm.core.evolve import evolve
from dorm.core import authority
from dorm.core.query import concerns
from dorm.core.state import State
from dorm.security.roles import PUBLISHES
from events import kinds as k
from events.codec import encode
from events.log.records import Record
from replay.export.disguise import Disguise
from replay.export.tables import _CLIENTS
from replay.tenants.hiding import REQUESTS, SHOWN

class Naming:
    def name(self, kind, name):
        return "pseudonym of " + kind
    def request(self, text):
        return ""

praise = k.AppPraised(app="cat", words="well done", silent="unmarked")
state, record = State(), Record(1, 1, "dorm.c.AppPraised.ann", encode(praise))
folded = evolve(state, record)
assert (type(folded.event), folded.outcome, folded.touched) == (k.AppPraised, "applied", False)
assert [role for role, kinds in PUBLISHES.items() if "AppPraised" in kinds] == ["user", "operator", "api"]
assert authority._RULES[k.AppPraised] is authority._changes_app
assert "AppPraised" in concerns.KINDS and k.AppPraised in concerns._REQUESTS
assert k.AppPraised in REQUESTS and k.AppPraised not in SHOWN and k.AppPraised in _CLIENTS
hidden = Disguise(Naming()).struct(praise)
assert (hidden.app, hidden.words, hidden.silent) == ("pseudonym of app_references", "(withheld)", "")
"""
OF_THE_FIELD = """
import msgspec
from dorm.core.state import State
from events.spec import check_spec, editing, spec_schema
from events.spec.abilities import needed
from replay.export.disguise import Disguise
from replay.tenants.hiding import Hiding
from replay.tenants.names import Names

class Naming:
    def name(self, kind, name):
        return "a" if kind != "requirements" else ""

document = {"name": "cat", "command": ["x"], "demand": {"cpu": 1}, "nickname": "kitty", "silent": "secret"}
spec = check_spec(document).stored()
assert "nickname" in spec_schema()["properties"]
assert "nickname" in editing.AT_ONCE and "silent" not in editing.AT_ONCE
assert needed(spec) == ("workdir",)
exported = Disguise(Naming()).struct(spec)
assert (exported.nickname, exported.silent) == ("(withheld)", "")
seen = Hiding(Names(State(), b"k" * 32)).spec(spec, "a", "b")
assert (seen.nickname, seen.silent) == ("", "")
"""


def tried(folder: Path, edits: dict[str, list[tuple[str, str]]], check: str) -> None:
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("web", "bench", "elastic", "remote")
        )
    for name, changes in edits.items():
        text = (folder / name).read_text()
        for old, new in changes:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        (folder / name).write_text(text)
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", f"import events; assert events.__file__.startswith({str(folder)!r})\n{check}"],
        cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_new_kind_is_written_in_at_most_five_files(tmp_path: Path) -> None:
    """Its class with the union of its module, its name in the package, and its handler: here one that changes no state."""
    assert len(NEW_KIND) <= 5
    tried(tmp_path, NEW_KIND, OF_THE_KIND)


def test_a_new_field_of_the_spec_is_written_in_at_most_six_files(tmp_path: Path) -> None:
    """Its declaration says everything but what it does."""
    assert len(NEW_FIELD) <= 6
    tried(tmp_path, NEW_FIELD, OF_THE_FIELD)
