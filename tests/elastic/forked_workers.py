"""The workers of an elastic job, forked off a process that has imported what they need (see `tests.e2e.forked`)."""

from __future__ import annotations

from typing import IO, Any

from dorm_lab.bench.elastic.workers import Workers
from tests.e2e import forked


class ForkedWorkers(Workers):
    """They take a tenth of the time to start.  Their kernels for linear algebra are chosen before the environment is."""

    def _run(self, words: tuple[str, ...], environment: dict[str, str], output: IO[bytes]) -> Any:
        return forked.program(words, environment, output, output)
