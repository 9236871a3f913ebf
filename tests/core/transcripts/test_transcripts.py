"""What a leader says in each story is what its transcript shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.core.transcripts.runner import rewritten, transcripts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_it_goes_as_the_transcript_says(path: Path) -> None:
    text = path.read_text()
    assert rewritten(text) == text, "`python -m tests.core.transcripts rewrite` shows the difference"


def test_a_transcript_that_says_something_else_is_noticed() -> None:
    for path in transcripts():
        text = path.read_text()
        changed = re.sub(r"(?m)^(\d+) Round applied$", r"\1 Round void", text, count=1)
        assert changed != text
        assert rewritten(changed) == text


def test_text_that_is_no_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="no block"):
        rewritten("lead\n")
    with pytest.raises(KeyError):
        rewritten("laed\n----\n")
