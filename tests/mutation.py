"""The results of `make mutation`: for each module of the sample, how many changes of its code a test noticed.

python -m tests.mutation        after `mutmut run`, which leaves its results in mutants/
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

_MUTANTS = Path("mutants")
_KILLED = (1, 3)
"""Exit codes of pytest: a test failed, or could not run."""
_SURVIVED = 0
_UNTESTED = (5, 33)
_NOT_YET = None


def outcome(code: int | None) -> str:
    """Return the outcome of a mutant's tests; any other exit code, such as that of an endless loop, counts as noticed."""
    if code is _NOT_YET:
        return "not tried"
    if code == _SURVIVED:
        return "survived"
    return "untested" if code in _UNTESTED else "killed" if code in _KILLED else "stopped"


def main() -> int:
    modules: dict[str, Counter[str]] = {}
    survivors: list[str] = []
    for path in sorted(_MUTANTS.rglob("*.py.meta")):
        codes: dict[str, int | None] = json.loads(path.read_text())["exit_code_by_key"]
        if codes:
            module = str(path.relative_to(_MUTANTS)).removesuffix(".meta")
            modules[module] = Counter(map(outcome, codes.values()))
            survivors += [name for name, code in codes.items() if outcome(code) in ("survived", "untested")]
    if not modules:
        print("error: there are no results; run `make mutation`", file=sys.stderr)
        return 1
    for name in survivors:
        print(f"survived: {name}")
    print(f"\n{'module':<28}{'noticed':>9}{'of':>6}{'score':>8}")
    for module, counts in [*modules.items(), ("all", sum(modules.values(), Counter[str]()))]:
        tried = counts.total() - counts["not tried"]
        noticed = counts["killed"] + counts["stopped"]
        print(f"{module:<28}{noticed:>9}{tried:>6}" + (f"{noticed / tried:>8.1%}" if tried else ""))
    print("\n`.venv/bin/mutmut show NAME` shows a change")
    return 0


if __name__ == "__main__":
    sys.exit(main())
