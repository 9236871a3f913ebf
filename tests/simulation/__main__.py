"""`make simulate`: clusters in virtual time under attack, one for each seed; see the package."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.running import Choice, Figures, Played, Progress, command, history_of, play, play_all
from tests.simulation.shrink import shrink
from tests.simulation.variants import VARIANTS, catch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.history import History

_STORY = 20


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    choice = Choice(options.only, options.apps, options.variant, options.rotate)
    if options.variants:
        return _variants(options)
    if options.seed is not None:
        return _one(options.seed, choice, trace=options.trace, shrinks=options.shrink)
    seeds = range(options.start, options.start + options.seeds)
    figures, progress = Figures(), Progress(len(seeds))
    try:
        for played in play_all(seeds, choice, options.jobs):
            figures.add(played)
            if played.outcome.broken and len(figures.failed) <= 5:
                _say_broken(played, choice)
            progress.tell(figures)
    except KeyboardInterrupt:
        print("\nstopped; of what was played until then:", file=sys.stderr)
    progress.tell(figures, last=True)
    _say(figures, as_json=options.output == "json")
    return int(bool(figures.failed) or figures.seeds < len(seeds))


def _numbers(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(int(number) for number in text.split(","))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Clusters under attack, in virtual time."
    )
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="how many (default: 500)")
    parser.add_argument("--from", dest="start", type=int, default=0, metavar="N", help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes")
    parser.add_argument("--seed", type=int, metavar="N", help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: all of its story")
    parser.add_argument("--shrink", action="store_true", help="with --seed: leave out what it fails without")
    parser.add_argument("--only", type=_numbers, metavar="N,N…", help="these faults of its schedule, or none")
    parser.add_argument("--apps", type=_numbers, metavar="N,N…", help="these of its apps")
    parser.add_argument(
        "--variant", default="", choices=["", *VARIANTS], metavar="NAME", help="broken on purpose in this way"
    )
    parser.add_argument(
        "--rotate", action="store_true", help="rotate the log in every seed's history, not only in some"
    )
    parser.add_argument("--variants", action="store_true", help="whether each broken variant is caught")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    return parser.parse_args(arguments)


# --- one seed ----------------------------------------------------------------------------------------------------------


def _one(seed: int, choice: Choice, *, trace: bool, shrinks: bool) -> int:
    history = history_of(seed, choice)
    if shrinks:
        choice = _shrink(seed, choice, history)
    played = play(seed, msgspec.structs.replace(choice, whole_story=trace))
    outcome = played.outcome
    if trace:
        print("\n".join(outcome.story))
    if outcome.broken:
        _say_broken(played, choice)
    else:
        print(
            f"seed {seed}: nothing was broken; {outcome.records} records, {outcome.virtual_s} s, digest {outcome.digest}"
        )
    return int(bool(outcome.broken))


def _shrink(seed: int, choice: Choice, history: History) -> Choice:
    def broken_with(faults: tuple[int, ...], apps: tuple[int, ...]) -> str:
        print(f"\r{len(faults)} faults, {len(apps)} apps   ", end="", file=sys.stderr, flush=True)
        return play(seed, msgspec.structs.replace(choice, only=faults, apps=apps)).outcome.broken

    faults = [fault.number for fault in history.faults]
    smaller = shrink(faults, [plan.index for plan in history.apps], broken_with)
    print(file=sys.stderr)
    for fault in history.faults:
        if fault.number in smaller.faults:
            print(fault)
    return msgspec.structs.replace(choice, only=smaller.faults, apps=smaller.apps)


def _say_broken(played: Played, choice: Choice) -> None:
    outcome = played.outcome
    print(f"\n{outcome.broken}")
    print("\n".join(outcome.story[-_STORY:]))
    print(f"again:   {command(outcome.seed, choice)} --trace")
    print(f"smaller: {command(outcome.seed, choice)} --shrink", flush=True)


# --- all of them -------------------------------------------------------------------------------------------------------


def _say(figures: Figures, *, as_json: bool) -> None:
    report = figures.report()
    if as_json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        if name != "faults":
            print(f"{name:20} {value}")
    for kind, count in report["faults"].items():
        print(f"  {count:>8,}  {kind}")


def _variants(options: argparse.Namespace) -> int:
    missed = []
    caught = catch(list(VARIANTS), options.jobs)
    for name, found in caught:
        if found is None:
            missed.append(name)
        print(f"{name:60} {'NOT CAUGHT' if found is None else f'seed {found.seed}: {found.broken[:120]}'}", flush=True)
    said = {"broken_variants": len(VARIANTS), "broken_variants_caught": len(VARIANTS) - len(missed), "missed": missed}
    print(json.dumps(said))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
