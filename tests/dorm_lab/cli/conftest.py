"""The program, run in this process, as in the tests of the product's commands."""

from __future__ import annotations

from tests.cli.conftest import here

__all__ = ["here"]
