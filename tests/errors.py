"""Errors are compared by their codes: the wording of each is asserted in `tests/test_error_texts.py` alone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest

from events.errors import code_of

if TYPE_CHECKING:
    from collections.abc import Iterator


E = TypeVar("E", bound=Exception)


@contextmanager
def raises(kind: type[E], code: str, *names: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this class and code, whose one line names these things; yield pytest's information about it."""
    with pytest.raises(kind) as caught:
        yield caught
    text = str(caught.value)
    assert code_of(caught.value) == code, text
    assert "\n" not in text
    for name in names:
        assert name in text


def codes_in(error: BaseException) -> list[str]:
    """Return the codes of all errors in a group, or of one error, in order."""
    if isinstance(error, BaseExceptionGroup):
        return [code for one in error.exceptions for code in codes_in(one)]
    return [code_of(error)]
