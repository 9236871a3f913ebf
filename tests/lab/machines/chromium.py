"""Debian's Chromium, which the tests of pages drive with Playwright (`tests.web.browsing`)."""

from __future__ import annotations

import shutil


def chromium() -> str | None:
    """Return the program, None if there is none."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
