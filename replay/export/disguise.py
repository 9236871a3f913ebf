"""Replaces names in events and states, by what their fields' types say that they hold (`events.fields`).

The same traversal first collects names and then replaces them (`Naming`). It keeps numbers, and words that the core
itself chose; text in a field whose type says nothing is dropped. A new field therefore reveals nothing until its type
says what it holds. The classes of states have plain types, so a table says it for them (`_STATES`).

What people and programs wrote for people (reasons, messages) is withheld, since it may contain anything.  Of a spec that was
refused for the content of a field, only the name is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol, get_args, get_origin

import msgspec

from dorm.core.admission import name_of
from dorm.core.state import can_be_kept
from dorm.policies.registry import names as policy_names
from dorm.policies.registry import policy
from events.fields import (
    AppId,
    AppKey,
    AppName,
    CoreWord,
    FreeText,
    Holds,
    Label,
    LabelValue,
    NodeId,
    NodeKey,
    Own,
    Params,
    PolicyName,
    RequestId,
    ResourceKey,
    SpecDocument,
    UserName,
    held_in,
    holds,
    is_silent,
    types_of,
    unmarked,
    without_none,
)  # fmt: skip
from events.kinds import NO_FOLDER, Address, FolderId, Identity
from events.quantities import CPU, duration, resource
from events.runtimes import RUNTIMES, runtime_name
from events.spec import (
    AppSpec,
    Deadlines,
    EngineOptions,
    Group,
    Retries,
    SpecError,
    StopSignal,
    Utility,
    Work,
    Workdir,
    can_be_read,
    check_spec,
)
from events.spec.abilities import ABILITIES
from events.spec.gates import After, starts_at

if TYPE_CHECKING:
    from collections.abc import Mapping


class Naming(Protocol):
    """Maps names to pseudonyms."""

    def name(self, kind: str, name: str) -> str:
        """Return the pseudonym of a name.  `kind` is a field of `replay.export.pseudonyms.Names`."""
        ...

    def request(self, text: str) -> str:
        """Return the pseudonym of a submission's or update's id; "" for any other text."""
        ...

    def beginning(self, prefix: str) -> list[str]:
        """Return the pseudonyms of apps' ids with this prefix."""
        ...


WITHHELD = "(withheld)"
_FOLDER = re.compile(r"[0-9a-f]{32}")
_POSITION = re.compile(r"[0-9]+(\.[0-9]+)?")
_RETRIES, _DEADLINES = set(Retries.__struct_fields__), set(Deadlines.__struct_fields__)
_STOP_SIGNAL = set(StopSignal.__struct_fields__)
_ENGINE = set(EngineOptions.__struct_fields__)
_UTILITY, _WORK = set(Utility.__struct_fields__), set(Work.__struct_fields__)
_WORKDIR = set(Workdir.__struct_fields__)
_AFTER = set(After.__struct_fields__)
_PAUSES = ("backoff", "longest", "reset")
_WHOLE = range(-(2**63), 2**64)
_HEX = re.compile(r"[0-9a-f]{64}")


class Disguise:
    """Replaces names with pseudonyms."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming

    def struct(self, value: msgspec.Struct) -> Any:
        """Return an event, a fact, or a part of a state under other names, in the same class."""
        if isinstance(value, AppSpec):
            if not can_be_read(value):  # It is unchecked, and the fold ignores it.
                value = AppSpec(name=value.name, command=["-"], demand={CPU: WITHHELD})
            return msgspec.convert(self._fields_of_spec(msgspec.to_builtins(value)), AppSpec)
        changed: dict[str, Any] = {}
        for name, rule in _rules(type(value)):
            old = getattr(value, name)
            # Most fields of most events have their default values.
            new = rule(self, old) if old else old
            if new is not old:
                changed[name] = new
        return msgspec.structs.replace(value, **changed) if changed else value

    def plain(self, value: Any) -> Any:
        """Return the value of a field that holds no names itself."""
        if isinstance(value, msgspec.Struct):
            return self.struct(value)
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, tuple):
            return tuple(self.plain(item) for item in value)
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items() if isinstance(key, int) or key.isdigit()}
        return "" if isinstance(value, str | bytes) else value

    def name(self, kind: str, value: str) -> str:
        return self._naming.name(kind, value) if value else value

    def origin(self, value: str) -> str:
        """Return the app from whose checkpoint another one starts, with the step."""
        app, at, step = value.partition("@")
        return self.name("app_references", app) + at + step

    def secrets(self, value: Mapping[str, list[str]]) -> dict[str, list[str]] | None:
        """Replace users and the names of their secrets as specs' secrets are."""
        return {
            self.name("users", user): [self.name("settings", name) for name in names] for user, names in value.items()
        }

    def cause(self, value: str) -> str:
        """Return a cause: a position, or the request that it answers."""
        if _POSITION.fullmatch(value):
            return value
        return self._naming.request(value)

    # --- specs ----------------------------------------------------------------------------------------------------------

    def document(self, value: Any) -> Any:
        """Return a spec as a client sent it: a refused one stays refused, for the same reason if possible."""
        try:
            check_spec(value)
        except SpecError as error:
            return self._refused(value, error) if can_be_kept(value) else {}
        return self._fields_of_spec(value)

    def _refused(self, value: Any, error: SpecError) -> Any:
        if not isinstance(value, dict):
            return None
        if _harmless(value):
            made = self._fields_of_spec(value)
            try:
                check_spec(made)
            except SpecError as again:
                if _field(again) == _field(error):
                    return made
        name = name_of(value)
        return {"name": self.name("app_references", name)} if name else {}

    def _fields_of_spec(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        rules = _rules_of_spec()
        made = {field: rules[field](self, value) for field, value in spec.items() if field in rules}
        if spec.get("group"):
            made = _with_own_variables(self, spec, made)
        return made

    # --- policies -------------------------------------------------------------------------------------------------------

    def policy(self, value: str) -> str:
        return value if value in policy_names() else self.name("policies", value)

    def params(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Replace parameters that no policy has, and values that none accepts, with equally invalid ones."""
        disguised = {}
        for number, (name, item) in enumerate(value.items()):
            if name == "counts":
                disguised[name] = self._counts(item)
            else:
                disguised[name if name in _parameters() else f"parameter-{number}"] = _number(item)
        return disguised

    def _counts(self, value: Any) -> Any:
        """Replace the counts of the policy `static`, keyed by apps' ids or prefixes of them, which pseudonyms do not share."""
        if not isinstance(value, dict) or not all(key and isinstance(key, str) for key in value):
            return WITHHELD
        disguised = {}
        for key in sorted(value, key=lambda key: (not key.endswith("*"), len(key), key)):
            # A longer prefix goes before a shorter one, and a whole id before both.
            if key == "*":
                disguised[key] = _number(value[key])
            elif key.endswith("*"):
                disguised |= dict.fromkeys(self._naming.beginning(key[:-1]), _number(value[key]))
            else:
                disguised[self.name("app_references", key)] = _number(value[key])
        return disguised


def _with_own_variables(disguise: Disguise, spec: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Return a spec whose group's own variables say the same as its group does: deciding again writes them again."""
    own = msgspec.convert(spec["group"], Group).variables().keys()
    env = {name: value for name, value in spec.get("env", {}).items() if name not in own}
    if len(env) == len(spec.get("env", {})):
        return made
    return {
        **made,
        "env": {**_rules_of_spec()["env"](disguise, env), **msgspec.convert(made["group"], Group).variables()},
    }


def _field(error: SpecError) -> str:
    """Return the field of a spec that an error is about."""
    return re.split(r"[:.\[]", str(error))[0]


def _harmless(spec: dict[str, Any]) -> bool:
    """Return whether a spec has only known fields with permitted values and a usable name, so the error is something else,
    such as bounds that contradict each other."""
    try:
        starts_at(msgspec.convert({"command": ["-"], "demand": {"cpu": 1}, **spec}, AppSpec), 0)
        retries, deadlines = spec.get("retries", {}), spec.get("deadlines", {})
        utility, work = spec.get("utility") or {}, spec.get("work") or {}
        waits = [spec.get("grace", 0), *(retries.get(name, 0) for name in _PAUSES)]
        stop_signal = spec.get("stop_signal")
        stop_signal = stop_signal if isinstance(stop_signal, dict) else {}
        waits += [
            stop_signal.get("before") or 0,
            utility.get("target", 0),
            work.get("mini_batch", 0),
            work.get("exchange", 0),
        ]
        waits += [item for item in (*deadlines.values(), spec.get("max_runtime", "")) if item != ""]
        amounts = [resource(name, amount) for name, amount in spec.get("demand", {}).items()]
        known = not spec.keys() - set(AppSpec.__struct_fields__) and not retries.keys() - _RETRIES
        known = known and not deadlines.keys() - _DEADLINES and not spec.get("engine_options", {}).keys() - _ENGINE
        known = known and not any(isinstance(item, dict) and item.keys() - _AFTER for item in spec.get("after", ()))
        known = (
            known
            and not stop_signal.keys() - _STOP_SIGNAL
            and not utility.keys() - _UTILITY
            and not work.keys() - _WORK
        )
        workdir = spec.get("workdir")
        known = known and not (isinstance(workdir, dict) and workdir.keys() - _WORKDIR)
        known = known and not (spec.get("group") or {}).keys() - set(Group.__struct_fields__)
        return known and min([*amounts, *map(duration, waits)]) >= 0 and name_of(spec) == spec["name"]
    except (msgspec.ValidationError, ValueError):
        return False


def _number(value: Any) -> Any:
    """Return a value that a policy may accept; for anything else a value that none accepts."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and value in _WHOLE):
        return value
    return WITHHELD


@cache
def _parameters() -> frozenset[str]:
    return frozenset(name for policy_name in policy_names() for name in policy(policy_name).check_params({}))


def _workdir(value: Any) -> Any:
    """Replace a shipped folder by a nonexistent one: its hash and its commit would reveal its owner."""
    return {"hash": "0" * 64} if isinstance(value, dict) else WITHHELD if value else value


Rule = Callable[[Disguise, Any], Any]


def _needs(disguise: Disguise, value: list[str]) -> list[str]:
    """Replace what an app needs of a node (`dorm.core.faults.needs_of`): resources, `volume/NAME`, and words."""
    made = []
    for need in value:
        kind, slash, name = need.partition("/")
        if slash:
            made.append(f"{kind}/{disguise.name('labels', name)}")
        else:
            made.append(need if need in ("secrets", "environment") else disguise.name("resources", need))
    return sorted(made)


def _folder(disguise: Disguise, value: str) -> str:
    """Keep random ids of folders, which reveal nothing; withhold any other text, which may be a client's."""
    return value if value in ("", NO_FOLDER) or _FOLDER.fullmatch(value) else WITHHELD


def _digest(disguise: Disguise, value: str) -> str:
    """Keep digests of an app's counts, which reveal nothing; drop any other text."""
    return value if _HEX.fullmatch(value) else ""


def _volumes(disguise: Disguise, value: Any) -> dict[str, str] | list[dict[str, Any]]:
    """Return the volumes of a spec: where a container sees one follows from the new name."""
    if isinstance(value, dict):
        return {(made := disguise.name("labels", name)): f"/{made}" for name in value}
    return [
        {"name": disguise.name("labels", volume["name"]), "read_only": volume.get("read_only", True)}
        for volume in value
    ]


def _after(disguise: Disguise, value: Any) -> Any:
    """Replace the apps that a spec waits for."""
    return [
        {**awaited, "app": disguise.name("app_references", awaited["app"])}
        if isinstance(awaited, dict)
        else disguise.name("app_references", awaited)
        for awaited in value
    ]


def _group(disguise: Disguise, value: Any) -> Any:
    return value and {**value, "name": disguise.name("app_references", value["name"]), "run": "", "parameters": {}}


def _same(disguise: Disguise, value: Any) -> Any:
    return value


_NAMED: dict[Holds, str] = {
    "app": "app_references", "node": "nodes", "user": "users", "request": "requests", "address": "addresses",
    "identity": "identities", "webhook": "webhooks", "token": "tokens", "master": "masters", "resource": "resources",
    "label": "labels", "value": "values", "requirement": "requirements", "image": "images", "argument": "arguments",
    "variable": "variables", "setting": "settings",
}  # fmt: skip
"""Kind of pseudonym by what a field holds."""
_HELD: dict[Holds, Rule] = {
    "word": _same,
    "text": lambda disguise, value: WITHHELD,
    "own": lambda disguise, value: type(value)(),
    "secret": lambda disguise, value: "0" * 64,  # Under another name, no such token exists.
    "cause": Disguise.cause,
    "folder": _folder,
    "digest": _digest,
    "policy": Disguise.policy,
    "params": Disguise.params,
    "runtime": lambda disguise, value: first if (first := runtime_name(value)) in RUNTIMES else "",
    "abilities": lambda disguise, value: [ability for ability in value if ability in ABILITIES],
    "secrets": lambda disguise, value: disguise.secrets(value),
    "needs": _needs,
    "document": Disguise.document,
    "origin": Disguise.origin,
    "after": _after,
    "volumes": _volumes,
    "workdir": lambda disguise, value: _workdir(value),
    "group": _group,
    "notify": lambda disguise, value: None,
}
_STATES: dict[str, Any] = {
    "State.leader": Annotated[str, holds("master")], "State.nodes": dict[NodeKey, Any], "State.apps": dict[AppKey, Any],
    "State.submissions": dict[Annotated[str, holds("request")], Any], "State.names": dict[AppKey, AppKey],
    "State.plugins": dict[PolicyName, Any], "State.checkpoints": FolderId, "Settings.checkpoints": FolderId,
    "Settings.params": Params, "Settings.policy": PolicyName, "Settings.tenant_retention_s": dict[UserName, Any],
    "Settings.weights": CoreWord, "FailedPolicy.policy": PolicyName, "FailedPolicy.code": CoreWord,
    "FailedPolicy.reason": FreeText, "Pause.by": UserName, "Pause.reason": FreeText,
    "RefusedChange.id": Own, "RefusedChange.by": Own, "RefusedChange.code": CoreWord, "RefusedChange.reason": FreeText,
    "ShortenedTime.by": Own,
    "Submission.id": RequestId, "Submission.app": AppName, "Submission.by": UserName, "Submission.refused": FreeText,
    "Submission.spec": SpecDocument, "Asked.made_from": Own, "Asked.reason": FreeText,
    "Node.id": NodeId, "Node.address": Address, "Node.identity": Identity, "Node.process": Identity,
    "Node.labels": dict[Label, LabelValue], "Node.capacity": dict[ResourceKey, Any], "Node.checkpoints": FolderId,
    "Node.abilities": Annotated[list[str], holds("abilities")], "Node.runtime": Annotated[str, holds("runtime")],
    "Node.failed": dict[AppKey, Any], "Refused.address": Address, "Refused.identity": Identity,
    "Suspect.probe": AppKey, "Suspect.reason": FreeText, "Suspect.apps": list[AppKey],
    "Suspect.failures": list[FreeText], "Suspect.needs": Annotated[list[str], holds("needs")],
    "PairFailure.app": AppKey, "PairFailure.node": NodeKey, "PairFailure.reason": FreeText,
    "PairFailure.failure": CoreWord, "PairFailure.needs": Annotated[list[str], holds("needs")],
    "App.id": AppId, "App.name": AppName, "App.submission": RequestId, "App.user": UserName,
    "App.cancel_reason": FreeText, "App.end_reason": FreeText, "App.end_code": CoreWord,
    "App.retries_used": Annotated[dict[str, int], holds("word")], "App.demand": dict[ResourceKey, Any],
    "App.served_on": dict[LabelValue, Any], "App.awaited_by": list[AppKey], "App.failed_on": dict[NodeKey, Any],
    "App.ran_well_on": list[NodeKey], "App.checkpoint_in": FolderId, "App.origin_digest": Annotated[str, holds("digest")],
    "MeasuredSpeed.type": LabelValue, "SizeRequest.reason": FreeText,
    "Note.by": UserName, "Note.text": FreeText, "SkippedLines.example": FreeText, "SkippedLines.reason": FreeText,
    "Hold.by": UserName, "Hold.reason": FreeText, "Awaited.app": AppName, "Awaited.name": AppName,
    "Revision.by": UserName, "Revision.changed": list[CoreWord], "Restart.by": UserName,
    "Generation.master_address": Address, "Generation.adjustment": CoreWord,
    "Container.node": NodeKey, "Container.address": Address, "Container.message": FreeText, "Container.reason": CoreWord,
    "Delay.reason": FreeText, "Delay.code": CoreWord,
}  # fmt: skip
"""Contents of those fields of states whose own types say nothing."""


@cache
def _rules(cls: type[msgspec.Struct]) -> tuple[tuple[str, Rule], ...]:
    """Return the rule for each field of a class that may hold a name."""
    rules = {
        name: _rule(_STATES.get(f"{cls.__name__}.{name}", kind)) or Disguise.plain
        for name, kind in types_of(cls).items()
    }
    return tuple((name, rule) for name, rule in rules.items() if rule is not _same)


@cache
def _rules_of_spec() -> dict[str, Rule]:
    """Return the rules for the fields of a spec, in the form in which its owner writes it.  A field with a text that says
    nothing of what it holds has none, and is left out."""
    fields = zip(AppSpec.__struct_encode_fields__, types_of(AppSpec).values(), strict=True)
    return {written: _rule(kind) or _same for written, kind in fields if not is_silent(kind)}


def _rule(kind: Any) -> Rule | None:
    """Return the rule for a type; None if nothing in it says what it holds."""
    what = held_in(kind)
    if what is not None:
        named = _NAMED.get(what)
        return _HELD[what] if named is None else partial(_name, named)
    kind = without_none(unmarked(kind))
    if kind is not unmarked(kind) or held_in(kind):
        return _rule(kind)
    match get_origin(kind), get_args(kind):
        case (origin, (one, *_)) if origin is list:
            return _in_list(_rule(one))
        case (origin, (key, value)) if origin is dict:
            return _in_map(_rule(key), _rule(value))
    return None


def _name(kind: str, disguise: Disguise, value: str) -> str:
    return disguise.name(kind, value)


def _in_list(rule: Rule | None) -> Rule | None:
    if rule is None or rule is _same:
        return rule
    return lambda disguise, value: [rule(disguise, item) for item in value]


def _in_map(key: Rule | None, value: Rule | None) -> Rule | None:
    if key is None:
        return None
    of_value = value or Disguise.plain
    return lambda disguise, given: {key(disguise, name): of_value(disguise, item) for name, item in given.items()}
