"""A small file system of its own, to be filled."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SMALL, _LARGER = "32m", "96m"


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[], None]]:
    """32 MiB at `folder` in memory, and what makes it 96; the test is skipped if nothing can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o"]
    made = subprocess.run([*mount, f"size={_SMALL}", "tmpfs", folder], capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode(errors='replace').strip()}")

    def enlarge() -> None:
        subprocess.run(["mount", "-o", f"remount,size={_LARGER}", folder], check=True)

    try:
        yield enlarge
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
