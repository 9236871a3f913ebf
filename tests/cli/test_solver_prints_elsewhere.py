"""What native code prints while a command computes must not end up in its JSON."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """if True:
    import ctypes
    from dorm.cli.output import solver_prints_elsewhere
    libc = ctypes.CDLL(None)
    with solver_prints_elsewhere():
        libc.puts(b"a line of the solver")
    print("{}")
"""


def test_a_line_of_native_code_goes_to_stderr() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "{}\n"
    assert done.stderr == "a line of the solver\n"
