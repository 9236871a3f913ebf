"""Errors are compared by their codes: the wording of each is asserted in `tests/test_error_texts.py` alone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest

from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Iterator


E = TypeVar("E", bound=DormError)


@contextmanager
def raises(kind: type[E], code: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this class and code; yield what pytest knows of it."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, str(caught.value)
