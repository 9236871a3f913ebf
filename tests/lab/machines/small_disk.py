"""A small separate file system that tests fill up."""

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
    """Yield a function that enlarges the 32 MiB file system at `folder`, in memory, to 96 MiB; skip the test if mounting
    fails."""
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
