"""Writes what happens now into all transcripts: `python -m tests.core.transcripts rewrite`."""

from __future__ import annotations

import sys

from tests.core.transcripts.runner import rewritten, transcripts

if sys.argv[1:] != ["rewrite"]:
    sys.exit("usage: python -m tests.core.transcripts rewrite")
for path in transcripts():
    old = path.read_text()
    new = rewritten(old)
    if new != old:
        path.write_text(new)
        print(f"{path.name} has changed")
