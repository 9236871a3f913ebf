"""What the process that commands are forked off has done before (see `forked`): imported what most of them need, also what
is imported late, where a value is read or an allocation is computed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

_LATE = (
    "dorm.cli.changes", "dorm.client.client", "dorm.core.query.plans", "dorm.core.query.standing",
    "dorm.core.query.views", "dorm.local.spec_files", "dorm.client.tail",
    "events.archive.segments", "events.nats.log", "events.archive.segments",
    "replay.audit.audit", "replay.travel.diff", "replay.story.explain", "replay.export.export", "replay.story.story",
"replay.travel.travel", "scipy.optimize", )  # fmt: skip


def _import_all() -> None:
    from dorm.cli.main import main
    from dorm.policies.registry import names, policy

    for name in _LATE:
        importlib.import_module(name)
    for name in names():
        policy(name)
    sys.argv = ["dorm", "ps", "--output", "wrong"]
    with open(os.devnull, "w") as nobody, contextlib.redirect_stderr(nobody), contextlib.suppress(SystemExit):
        main()
    gc.collect()
    gc.freeze()  # Its memory stays shared with all that are forked.


_import_all()
