"""Each YAML block of README and the documentation is a spec, a part of one, or a document of another system that is named
as such."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dorm.local import spec_files
from events.spec.checking import check_spec
from events.spec.faults import SpecError
from events.spec.sweeps import expanded, is_sweep
from tests.docs.shown import Block, pages

BASE = {"name": "shown", "command": ["true"], "demand": {"cpu": 1}}
"""What a block that shows some fields leaves out."""
IN_FILES = {"workdir", *spec_files.INCLUDED}
"""Fields that name files, which are not there."""
BLOCKS = {
    f"{page.name}:{block.line}": block
    for page in pages().values()
    for block in page.blocks()
    if block.language == "yaml"
}
_KEY = re.compile(r"^([A-Za-z_]+):")


def alternatives(block: Block) -> list[str]:
    """The documents of a block.  One that shows a field twice shows two ways to write it."""
    fields: list[tuple[str, list[str]]] = []
    for line in block.lines:
        begun = _KEY.match(line)
        if begun is not None:
            fields.append((begun[1], [line]))
        elif fields:
            fields[-1][1].append(line)
    most = max([key for key, _ in fields].count(key) for key, _ in fields)
    texts: list[str] = []
    for number in range(most):
        chosen: dict[str, list[str]] = {}
        for key in dict.fromkeys(key for key, _ in fields):
            ways = [lines for name, lines in fields if name == key]
            chosen[key] = ways[min(number, len(ways) - 1)]
        texts.append("\n".join(line for lines in chosen.values() for line in lines))
    return texts


@pytest.mark.parametrize("where", BLOCKS)
def test_a_block_says_what_it_is_meant_to(where: str) -> None:
    block = BLOCKS[where]
    for text in alternatives(block):
        if where.startswith("docs/coming-from/") and not block.title and "demand:" not in text:
            with pytest.raises(SpecError) as refused:
                spec_files.parse_spec(text)
            assert refused.value.code.startswith("spec.foreign."), where
            continue
        document: dict[str, Any] = spec_files.parse_spec(text)
        document = {key: value for key, value in document.items() if key not in IN_FILES}
        if is_sweep(document):
            assert expanded(document).specs
            continue
        assert block.title == "" or document.keys() >= BASE.keys(), f"{where} is a file, and not a whole spec"
        check_spec({**BASE, **document})
