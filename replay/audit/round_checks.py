"""The question that a round puts to an audit, and the answer from the state at its basis.

    decide     all facts follow from the state: they are decided again and must be the same
    conclude   silence of nodes, which only the shell observed: the round's heartbeats are an input, the rest is checked
    elect      a new epoch, one above the last
    seal       independent of the state: `replay.audit.seal_checks` checks it against the log
    void       a round of an earlier epoch: it may change nothing
    digest     cannot be decided again here (see `why_not`), but was decided on the same state, by the policy in force

The answer is computed when the fold is at the basis, before the round itself is read; the verdict, when the round is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dorm.core.allocation import SOLVER
from dorm.core.next_round import decide
from dorm.core.state import SCHEMA, Counters, State, digest
from dorm.core.timing import conclude
from dorm.policies.registry import UnknownPolicy, installed, policy
from events.codec import decode, encode
from events.kinds import (
    IdleTicked,
    LogSealed,
    MasterElected,
    NodeLeaseEnded,
    NodeLost,
    NodeRecovered,
    PolicyFailed,
    Resized,
    Round,
)
from replay.audit.differences import AppDifference, Difference, differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.log.records import Record

Question = Literal["decide", "conclude", "elect", "seal", "void", "digest"]
GUARDED = "a solver's time guard fired"
_CONCLUDED = (NodeLost, NodeRecovered, NodeLeaseEnded)
_SOLVED = (Resized, IdleTicked)
"""Facts that come from a policy; each names it, its version and its solver."""
_NAMED = (*_SOLVED, PolicyFailed)
"""Facts that name the policy in force, and the state that they were made from."""
_OF_THE_MACHINE = ("policy.too_slow", "policy.ended", "policy.not_installed")
"""Codes with which a policy may fail here although it did not where the decision was made."""


class Answer(msgspec.Struct):
    """The answer of the state at the basis; only the fields that the question needs are set."""

    facts: list[Any] = []
    allocated: bool = False
    digest: str = ""
    policy: str = ""
    state: State | None = None
    """Settings and nodes, without the rest."""
    places: dict[str, dict[str, int]] = {}
    """Containers of each app by node before an allocation."""
    error: str = ""
    unknown: str = ""
    """Reason why there is no answer, unless that is an error of the round."""


class Verdict(msgspec.Struct, frozen=True):
    """`wrong` is empty if no check failed, `unchecked` if everything that could be checked was."""

    wrong: str = ""
    differences: list[Difference] = []
    apps: list[AppDifference] = []
    unchecked: str = ""


def question_of(record: Record, event: Round, epoch: int) -> Question:
    """Return the question that a round asks.  `epoch` is the one in force before it."""
    if event.epoch < epoch:
        return "void"
    if event.events and all(isinstance(fact, MasterElected) for fact in event.events):
        return "elect"
    if event.events and all(isinstance(fact, _CONCLUDED) for fact in event.events):
        return "conclude"
    if event.events and all(isinstance(fact, LogSealed) for fact in event.events):
        return "seal"
    return "digest" if why_not(record, event) else "decide"


def why_not(record: Record, event: Round) -> str:
    """Return why this build cannot decide a round again, '' if it can."""
    if event.core != SCHEMA:
        return f"another version of the core decided it ({event.core}, here {SCHEMA})"
    if encode(event) != record.body:
        return "another build wrote it, with fields that this one does not know"
    failed = [fact for fact in event.events if isinstance(fact, PolicyFailed)]
    if failed:
        return f"policy {failed[0].policy!r} failed there ({failed[0].code})"
    for fact in event.events:
        if isinstance(fact, _SOLVED):
            if why := _not_here(fact):
                return why
            if fact.solver != SOLVER:
                return f"another solver decided it ({fact.solver}, here {SOLVER})"
            if fact.status == "guard":
                return GUARDED
    return ""


def _not_here(fact: Resized | IdleTicked) -> str:
    """Return why the policy of a decision cannot be asked again here, '' if it can."""
    named = f"policy {fact.policy!r}"
    if not installed(fact.policy):
        return f"{named} of the plug-in {fact.plugin} is not installed" if fact.plugin else f"this build has no {named}"
    try:
        here = policy(fact.policy)
    except UnknownPolicy:
        return f"{named} of the plug-in {fact.plugin} cannot be loaded"
    if fact.policy_version != here.version:
        return f"another version of {named} decided it"
    plugin = getattr(here, "plugin", "")
    if fact.plugin != plugin:
        return f"{named} of {fact.plugin or 'Dorm itself'} decided it, and here it is of {plugin or 'Dorm itself'}"
    return ""


def misplaced(event: Round, seq: int, epoch: int, last_round: int) -> str:
    """Return the error in a round's epoch or basis, '' if there is none.  `epoch` and `last_round` are those before it."""
    elected = [fact.epoch for fact in event.events if isinstance(fact, MasterElected)]
    if not last_round <= event.basis < seq:
        return f"its basis is {event.basis}, which is not between the last round ({last_round}) and itself"
    if elected and (elected != [event.epoch] or event.epoch != epoch + 1):
        return f"it elects for epoch {', '.join(map(str, elected))} in epoch {event.epoch}, after epoch {epoch}"
    if not elected and event.epoch > epoch:
        return f"its epoch is {event.epoch}, and no master was elected since epoch {epoch}"
    return ""


def answer(state: State, question: Question, at: int, *, allocate: bool) -> Answer:
    """Answer a question when the fold is at the round's basis, before the round is read.  Leaves the state unchanged."""
    if question != "elect" and question != "void" and at < state.time:
        return Answer(error=f"it says it was decided at {at}, before the log time of its basis, {state.time}")
    if question == "decide":
        try:
            decision = decide(state, at, allocate=allocate)
            places = _places(state) if decision.allocated else {}
            return Answer(facts=decision.facts, allocated=decision.allocated, places=places)
        # A log that no master wrote can hold anything; an exception it triggers is a finding, not a crash of the audit.
        except Exception as error:
            return Answer(error=f"deciding again failed: {type(error).__name__}: {error}")
    if question == "digest":
        return Answer(digest=digest(state), policy=state.settings.policy)
    if question == "conclude":
        nodes = {name: msgspec.structs.replace(node) for name, node in state.nodes.items()}
        settings = msgspec.structs.replace(state.settings)
        return Answer(state=State(nodes=nodes, settings=settings, shortened=dict(state.shortened)))
    return Answer(digest=essence(state) if question == "void" else "")


def _places(state: State) -> dict[str, dict[str, int]]:
    return {app.id: app.current.by_node() for app in state.live_apps() if app.current is not None}


def essence(state: State) -> str:
    """Return a digest of the parts that a void round must not change: everything but the position in the log and the
    counters."""
    return digest(msgspec.structs.replace(state, seq=0, time=0, round_seq=0, counters=Counters()))


def compare(record: Record, event: Round, question: Question, given: Answer, after: State) -> Verdict:
    """Compare the record with the answer.  `after` is the state with the round folded."""
    if given.error or given.unknown:
        return Verdict(wrong=given.error, unchecked=given.unknown)
    if question == "void":
        return Verdict(wrong="a round of an earlier epoch changed the state" if essence(after) != given.digest else "")
    if question == "seal":
        return _compare_seals(event)
    if question == "digest":
        verdict = _compare_digest(event, given)
    elif question == "decide":
        verdict = _compare_facts(record, event, given)
    elif question == "conclude" and event.core == SCHEMA:
        verdict = _compare_conclusions(event, given)
    else:  # Another version may have decided by settings that this one refuses.
        verdict = Verdict()
    return verdict if verdict.wrong or verdict.unchecked else Verdict(unchecked=why_not(record, event))


def _compare_facts(record: Record, event: Round, given: Answer) -> Verdict:
    """Compare byte for byte; if that fails, field by field, after the same round trip through the codec, to locate it."""
    body = encode(msgspec.structs.replace(event, events=given.facts, allocated=given.allocated))
    if body == record.body:
        return Verdict()
    if any(isinstance(fact, _SOLVED) and fact.status == "guard" for fact in given.facts):
        return Verdict(unchecked=GUARDED)
    for fact in given.facts:
        if isinstance(fact, PolicyFailed) and fact.code in _OF_THE_MACHINE:
            return Verdict(unchecked=f"policy {fact.policy!r} failed when it was asked again ({fact.code})")
        if isinstance(fact, PolicyFailed):
            return Verdict(wrong=f"deciding again failed: policy {fact.policy!r}: {fact.reason}")
    again = decode(msgspec.structs.replace(record, body=body))
    different = differences(event.allocated, given.allocated, "allocated")
    different += _fact_differences(event.events, again.events if isinstance(again, Round) else given.facts)
    facts = again.events if isinstance(again, Round) else given.facts
    apps = _app_differences(event.events, facts, given.places)
    return Verdict(wrong="deciding again gave a different result", differences=different, apps=apps)


def _app_differences(
    recorded: Sequence[Any], again: Sequence[Any], before: dict[str, dict[str, int]]
) -> list[AppDifference]:
    """Return the apps that would have got other places, by id."""
    written, repeated = _placements(recorded), _placements(again)
    different = []
    for app in sorted({*written, *repeated}):
        had = before.get(app, {})
        if written.get(app, had) != repeated.get(app, had):
            different.append(AppDifference(app, had, written.get(app, had), repeated.get(app, had)))
    return different


def _placements(facts: Sequence[Any]) -> dict[str, dict[str, int]]:
    """Return the containers by node of each changed app."""
    placements: dict[str, dict[str, int]] = {}
    for fact in facts:
        for change in fact.changes if isinstance(fact, Resized) else ():
            nodes = sorted(placed.node for placed in change.placement)
            placements[change.app] = {node: nodes.count(node) for node in dict.fromkeys(nodes)}
    return placements


def _compare_seals(event: Round) -> Verdict:
    for fact in event.events:
        if isinstance(fact, LogSealed) and fact.upto != event.basis:
            return Verdict(wrong=f"it seals the log up to {fact.upto}, and its basis is {event.basis}")
    return Verdict()


def _fact_differences(recorded: Sequence[Any], again: Sequence[Any]) -> list[Difference]:
    kinds = [[type(fact).__name__ for fact in facts] for facts in (recorded, again)]
    if kinds[0] != kinds[1]:
        # The lists of facts say more than the first difference between them.
        listed = [", ".join(names) or "nothing" for names in kinds]
        different = [Difference("facts", *listed)]
    else:
        different = []
    for index, (written, repeated) in enumerate(zip(recorded, again, strict=False)):
        if type(written) is type(repeated) and encode(written) != encode(repeated):
            different += differences(written, repeated, f"{type(written).__name__}[{index}]")
    return different


def _compare_conclusions(event: Round, given: Answer) -> Verdict:
    assert given.state is not None
    heard = {fact.node: getattr(fact, "last_heard", event.at) for fact in event.events if isinstance(fact, _CONCLUDED)}
    different = _fact_differences(event.events, conclude(given.state, heard, event.at))
    return (
        Verdict(wrong="this does not follow from the heartbeats of these nodes", differences=different)
        if different
        else Verdict()
    )


def _compare_digest(event: Round, given: Answer) -> Verdict:
    if event.core != SCHEMA:
        return Verdict()  # Another core's state has another digest.
    for index, fact in enumerate(event.events):
        if not isinstance(fact, _NAMED):
            continue
        for name, expected in (("digest", given.digest), ("policy", given.policy)):
            if getattr(fact, name) != expected:
                different = differences(getattr(fact, name), expected, f"{type(fact).__name__}[{index}].{name}")
                return Verdict(wrong=f"the {name} differs from that of the state at its basis", differences=different)
    return Verdict()
