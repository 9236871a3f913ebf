"""What the process that commands are forked off has done before (see `forked`): imported what most of them need, also what
is imported late, where a value is read or an allocation is computed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

_LATE = (
    "aiohttp.web", "dorm.api.serving", "dorm.cli.changes", "dorm.client.client", "dorm.client.tail",
    "dorm.core.query.plans", "dorm.core.query.standing", "dorm.core.query.views", "dorm.health.pages",
    "dorm.health.process_checks", "dorm.local.cluster", "dorm.local.companions", "dorm.local.spec_files",
    "dorm.metrics.log_figures",
    "dorm.metrics.server", "dorm.webhooks.deliverer", "events.archive.segments", "events.nats.log",
    "replay.audit.audit", "replay.export.export", "replay.story.explanation", "replay.story.story", "replay.diff",
    "replay.travel", "rich.traceback", "scipy.optimize", "standardwebhooks.webhooks",
)  # fmt: skip


def _import_all() -> None:
    gc.disable()
    from dorm.cli.main import main
    from dorm.policies.registry import names, policy

    for name in _LATE:
        importlib.import_module(name)
    for name in names():
        policy(name)
    for words in (["--help"], ["ps", "--output", "wrong"]):  # Help imports the modules of all commands.
        sys.argv = ["dorm", *words]
        with (
            open(os.devnull, "w") as nobody, contextlib.redirect_stdout(nobody), contextlib.redirect_stderr(nobody),
            contextlib.suppress(SystemExit),
        ):  # fmt: skip
            main()
    gc.collect()
    gc.freeze()  # Its memory stays shared with all that are forked.
    gc.enable()


_import_all()
