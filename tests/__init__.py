"""Tests, in the layout of the packages that they test; `lab` and `simulation` try to break whole clusters.

The tests start hundreds of interpreters.  If the environment forbids bytecode files, each of them compiles everything
that it imports, which takes longer than most tests; so the tests and what they start write these files.
"""

from __future__ import annotations

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
