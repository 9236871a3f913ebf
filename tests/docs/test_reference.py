"""The generated reference is complete, and links between the pages lead somewhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, get_args

import pytest

import dorm.client
import dorm.policies
import events.log
from docs.site import commands, kinds, policies, spec
from dorm.policies.registry import names
from events.kinds import Event, MasterFact, Published
from events.spec import AppSpec, Deadlines, EngineOptions, Retries
from tests.docs.shown import REPOSITORY

if TYPE_CHECKING:
    from types import ModuleType

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_GENERATED = {f"docs/reference/{name}.md" for name in ("commands", "errors", "events", "policies", "spec")}
_TOP = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]


def test_every_command_has_a_section_with_its_options() -> None:
    page = commands.page()
    sections = dict(re.findall(r"^## (dorm [\w -]+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    found = {name: command for name, command, _ in commands.commands()}
    assert set(sections) == set(found)
    assert {"dorm up", "dorm replay verify", "dorm policy set", "dorm bench codec"} <= set(found)
    for name, command in found.items():
        for param in command.params:
            if not param.hidden and param.param_type_name == "option":
                assert max(param.opts, key=len) in sections[name], (name, param.opts)
    assert "[bold]" not in page
    assert "$ dorm submit app.yaml --name second --wait\n" in sections["dorm submit"]
    assert "JSON: `policy`, `version`" in sections["dorm policy show"]


def test_every_kind_of_event_has_a_section_under_its_writer() -> None:
    written = [kind for names in kinds.writers().values() for kind in names]
    published = {kind.__name__ for kind in (*get_args(Published), *get_args(MasterFact))}
    assert set(written) == published
    assert len(written) == len(set(written))
    page = kinds.page()
    for name in (*written, Event.__name__, "Resize", "Placed"):
        assert f"### {name}\n" in page
    assert "| `node_lease_s` | number ≥ 1, ≤ 864000 or null | `null` |" in page


def test_every_field_of_a_spec_is_listed() -> None:
    page = spec.page()
    fields = [
        name for name in AppSpec.__struct_encode_fields__ if name not in ("engine_options", "retries", "deadlines")
    ]
    fields += [f"engine_options.{name}" for name in EngineOptions.__struct_fields__]
    fields += [f"retries.{name}" for name in Retries.__struct_fields__]
    fields += [f"deadlines.{name}" for name in Deadlines.__struct_fields__]
    for name in fields:
        assert f"| `{name}` |" in page
    assert "| `command` | list of string | required |" in page


@pytest.mark.usefixtures("only_policies_of_ours")
def test_every_policy_has_a_section_with_its_parameters() -> None:
    page = policies.page()
    assert re.findall(r"^## ([\w-]+)$", page, re.MULTILINE) == names()
    assert "| `theta1` | `0.3` | 0 to 1 | fairness loss at most this part of its maximum" in page
    assert "| `backfill` | `false` |  | whether a later app may start" in page


@pytest.mark.parametrize(
    ("package", "page"), [(dorm.client, "client"), (dorm.policies, "policies"), (events.log, "log")], ids=str
)
def test_the_reference_of_python_lists_every_export(package: ModuleType, page: str) -> None:
    text = (REPOSITORY / f"docs/reference/python/{page}.md").read_text()
    shown = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    exported = {name: getattr(package, name) for name in package.__all__}
    assert exported
    assert {name for name, value in exported.items() if value.__module__ not in shown} == set()
    assert all(value.__doc__ for value in exported.values()), "one without a docstring is left out"


@pytest.mark.parametrize(
    "name", [*_TOP, *(str(file.relative_to(REPOSITORY)) for file in sorted((REPOSITORY / "docs").rglob("*.md")))]
)
def test_links_between_pages_lead_somewhere(name: str) -> None:
    page = REPOSITORY / name
    for link in _LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if re.match(r"\w+://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        where = str(target.relative_to(REPOSITORY))
        assert target.exists() or where in _GENERATED, f"{name} links to {where}, which is not there"
        if anchor and target.suffix == ".md" and target.exists():
            assert anchor in _anchors(target.read_text()), f"{name} links to #{anchor}, which {where} does not have"


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 200
