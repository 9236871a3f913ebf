"""Error codes keep their meaning from release to release: programs compare them.

`error_codes.txt` lists them all, one a line, with `*` for a part that depends on the error.  A new code is added by
`python -m docs.site.codes > tests/error_codes.txt`.
"""

from __future__ import annotations

import re
from pathlib import Path

from docs.site.codes import all_codes, page

_LIST = Path(__file__).with_name("error_codes.txt")
_WORD = r"[a-z0-9_]*(?:[a-z0-9_]|\*)"
_FORM = re.compile(rf"(?:[a-z0-9_]+|\*)(?:\.{_WORD})+")
_ONE_WORD = {"failed", "interrupted"}
"""`failed` is the root's, for errors that nothing is known of; `interrupted` says all there is to say."""


def test_no_code_is_removed_or_renamed() -> None:
    gone = sorted(set(_LIST.read_text().split()) - set(all_codes()))
    assert gone == [], (
        f"error codes are stable, and the source no longer has {', '.join(gone)}: give the error its old code back. If the "
        "error itself is gone, remove its line from tests/error_codes.txt and name the code under Removed in CHANGELOG.md"
    )


def test_every_code_is_in_the_list() -> None:
    new = sorted(set(all_codes()) - set(_LIST.read_text().split()))
    assert new == [], (
        f"new error codes: {', '.join(new)}. They stay for good, so see first whether an existing one has the same cause; "
        "then run `python -m docs.site.codes > tests/error_codes.txt`"
    )


def test_the_list_is_sorted_and_has_no_code_twice() -> None:
    lines = _LIST.read_text().splitlines()
    assert lines == sorted(set(lines))


def test_codes_are_words_joined_by_dots() -> None:
    assert [code for code in all_codes() if not _FORM.fullmatch(code) and code not in _ONE_WORD] == []


def test_every_error_code_is_listed_with_what_it_means() -> None:
    text = page()
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE))
    assert set(rows) == set(all_codes())
    assert rows["port.in_use"].startswith("port … on … is in use; choose another with --port")
    assert rows["package.missing"].endswith("| 1")
    assert rows["usage.conflict"].endswith("| 2")
    assert [code for code, row in rows.items() if row.startswith(" |")] == []
