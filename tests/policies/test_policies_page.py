"""docs/policies.md: its example does what the page says, with none of our code except the policies."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dorm.policies.problem import AppDemand, NodeRoom
from dorm.policies.registry import names

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


EXAMPLES = re.findall(r"```python\n(.*?)```\n\n?This prints:\n\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize(("code", "wanted"), EXAMPLES, ids=["a decision", "a simulator"])
def test_an_example_prints_what_the_page_shows_and_needs_no_log_or_master(code: str, wanted: str) -> None:
    asks = (
        "import sys\nprint(*[name for name in sys.modules if name.startswith(('dorm.', 'replay', 'agents', 'nats'))])\n"
    )
    said = subprocess.run([sys.executable, "-c", code + asks], capture_output=True, text=True, check=True).stdout
    printed, _, modules = said.rstrip("\n").rpartition("\n")
    assert printed == wanted.rstrip("\n")
    assert all(name.startswith("dorm.policies") for name in modules.split())


@pytest.mark.usefixtures("only_policies_of_ours")
def test_it_names_every_policy_and_every_field() -> None:
    text = PAGE.read_text()
    missing = [name for name in names() if f"| `{name}` |" not in text]
    fields = [field for kind in (NodeRoom, AppDemand) for field in kind.__struct_fields__ if f"`{field}`" not in text]
    assert not missing
    assert not fields
