"""See the package."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from replay.export.anonymize import anonymized
from replay.export.export import export
from tests.core.golden_log import story
from tests.golden.incident import play
from tests.golden.made import FOLDER, MADE, made_of_all
from tests.replay.made_log import log_of


async def _keep(name: str, *, incident: bool) -> None:
    if incident:
        with tempfile.TemporaryDirectory() as root:
            log = await anonymized(log_of(await play(Path(root))))
        await export(log, FOLDER / f"{name}.dorm", force=True)
    else:
        await export(log_of(story()), FOLDER / f"{name}.dorm")


def main() -> None:
    match sys.argv[1:]:
        case ["release", version]:
            asyncio.run(_keep(version, incident=False))
        case ["incident"]:
            asyncio.run(_keep("incident", incident=True))
        case ["made"] | ["rewrite"]:
            pass
        case _:
            sys.exit("usage: python -m tests.golden made | release VERSION | incident | rewrite")
    made = asyncio.run(made_of_all())
    if sys.argv[1] != "made":
        MADE.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    print(json.dumps(made, sort_keys=True))


if __name__ == "__main__":
    main()
