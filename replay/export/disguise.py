"""Replaces names in events and states: one table states which kind of name each field holds.

The same traversal first collects names and then replaces them (`Naming`). It keeps numbers, and words that the core
itself chose (`_WORDS`); text in any other field is dropped. A new field therefore reveals nothing until a rule for it
is added here.

What people and programs wrote for people (reasons, messages) is withheld, since it may contain anything.  Of a spec that was
refused for the content of a field, only the name is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dorm.core.apps.admission import name_of
from dorm.core.state import can_be_kept
from dorm.policies.registry import names as policy_names
from dorm.policies.registry import policy
from events.kinds import NO_FOLDER
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
_WORDS = {
    "adjustment", "code", "condition", "draining", "ended", "failure", "retries_used", "solver", "state", "status", "trigger",
    "Awaited.when", "Awaited.outcome", "App.end_code", "MembershipChanged.change", "loss_is", "Resize.why", "App.kill",
    "NodeOffers.pythons", "Unfit.code", "AppRevised.changed", "Revision.changed", "Asked.what", "Doubted.how",
    "UserAdded.role", "User.role", "Refusal.kind", "RefusedRecord.of",
    "WebhookSet.events", "AppRejected.refused", "ContainerExited.reason", "Container.reason",
    "SessionStarted.what", "SessionEnded.what", "doing", "PolicyChanged.weights", "Settings.weights",
    "GenerationFailed.fault", "MembersLost.fault", "AppFailed.fault", "NodeTrusted.how",
}  # fmt: skip
"""Fields that hold the core's own words."""
_HEX = re.compile(r"[0-9a-f]{64}")
_DROPPED = {
    "build", "by", "chain", "digest", "id", "key", "marks", "name", "plugin", "previous_key", "signature",
    "subject", "test", "url", "public_key", "about", "session", "made_from",
}  # fmt: skip
"""Fields that are wrong under other names, or that the rewriter fills in from the record."""
_NAMES = {
    "app": "app_references", "App.id": "app_references", "App.name": "app_references", "Submission.app": "app_references",
    "submission": "requests", "Submission.id": "requests", "Submission.by": "users", "App.user": "users", "Pause.by": "users",
    "Hold.by": "users", "Awaited.app": "app_references", "Awaited.name": "app_references",
    "node": "nodes", "Node.id": "nodes", "address": "addresses", "identity": "identities",
    "NodeJoined.process": "identities", "NodeLeft.process": "identities", "Node.process": "identities",
    "State.leader": "masters", "Suspect.probe": "app_references",
    "webhook": "webhooks", "UserAdded.name": "users", "UserRemoved.name": "users", "User.name": "users",
    "tenant": "users", "TokenAdded.user": "users", "Token.user": "users", "Refusal.who": "users", "RefusedRecord.who": "users",
    "editor": "users", "Revision.by": "users", "Restart.by": "users", "AppRestarted.tenant": "users",
    "token": "tokens", "Token.name": "tokens", "SessionStarted.user": "users", "SessionEnded.user": "users",
}  # fmt: skip
_TEXTS = {
    "reason",
    "message",
    "example",
    "text",
    "cancel_reason",
    "end_reason",
    "Submission.refused",
    "SessionStarted.command",
    "Doubt.aside",
}


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
            return [self.plain(one) for one in value]
        if isinstance(value, tuple):
            return tuple(self.plain(one) for one in value)
        if isinstance(value, dict):
            return {key: self.plain(one) for key, one in value.items() if isinstance(key, int) or key.isdigit()}
        return "" if isinstance(value, str | bytes) else value

    def name(self, kind: str, value: str) -> str:
        return self._naming.name(kind, value) if value else value

    def origin(self, value: str) -> str:
        """Return the app from whose checkpoint another one starts, with the step."""
        app, at, step = value.partition("@")
        return self.name("app_references", app) + at + step

    def keys(self, kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return a map that is keyed by names."""
        return {self.name(kind, key): self.plain(one) for key, one in value.items()}

    def labels(self, value: Mapping[str, str]) -> dict[str, str]:
        return {self.name("labels", key): self.name("values", one) for key, one in value.items()}

    def secrets(self, value: Mapping[str, list[str]]) -> dict[str, list[str]] | None:
        """Replace users and the names of their secrets as specs' secrets are."""
        return {
            self.name("users", user): [self.name("settings", one) for one in names] for user, names in value.items()
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
        made = {field: _SPEC[field](self, value) if field in _SPEC else value for field, value in spec.items()}
        if spec.get("group"):
            made = _with_own_variables(self, spec, made)
        return made

    def after(self, value: Any) -> Any:
        """Replace the apps that a spec waits for."""
        return [
            {**one, "app": self.name("app_references", one["app"])}
            if isinstance(one, dict)
            else self.name("app_references", one)
            for one in value
        ]

    # --- policies -------------------------------------------------------------------------------------------------------

    def policy(self, value: str) -> str:
        return value if value in policy_names() else self.name("policies", value)

    def params(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Replace parameters that no policy has, and values that none accepts, with equally invalid ones."""
        found = {}
        for number, (name, one) in enumerate(value.items()):
            if name == "counts":
                found[name] = self._counts(one)
            else:
                found[name if name in _parameters() else f"parameter-{number}"] = _number(one)
        return found

    def _counts(self, value: Any) -> Any:
        """Replace the counts of the policy `static`, keyed by apps' ids or prefixes of them, which pseudonyms do not share."""
        if not isinstance(value, dict) or not all(key and isinstance(key, str) for key in value):
            return WITHHELD
        found = {}
        for key in sorted(value, key=lambda key: (not key.endswith("*"), len(key), key)):
            # A longer prefix goes before a shorter one, and a whole id before both.
            if key == "*":
                found[key] = _number(value[key])
            elif key.endswith("*"):
                found |= dict.fromkeys(self._naming.beginning(key[:-1]), _number(value[key]))
            else:
                found[self.name("app_references", key)] = _number(value[key])
        return found


def _with_own_variables(disguise: Disguise, spec: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Return a spec whose group's own variables say the same as its group does: deciding again writes them again."""
    own = msgspec.convert(spec["group"], Group).variables().keys()
    env = {name: value for name, value in spec.get("env", {}).items() if name not in own}
    if len(env) == len(spec.get("env", {})):
        return made
    return {**made, "env": {**_SPEC["env"](disguise, env), **msgspec.convert(made["group"], Group).variables()}}


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
        waits += [one for one in (*deadlines.values(), spec.get("max_runtime", "")) if one != ""]
        amounts = [resource(name, amount) for name, amount in spec.get("demand", {}).items()]
        known = not spec.keys() - set(AppSpec.__struct_fields__) and not retries.keys() - _RETRIES
        known = known and not deadlines.keys() - _DEADLINES and not spec.get("engine_options", {}).keys() - _ENGINE
        known = known and not any(isinstance(one, dict) and one.keys() - _AFTER for one in spec.get("after", ()))
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
    return frozenset(name for one in policy_names() for name in policy(one).check_params({}))


def _no_digest(disguise: Disguise, value: str) -> str:
    """Replace the digest of a secret: under another name, no such token exists."""
    return "0" * 64


def _workdir(value: Any) -> Any:
    """Replace a shipped folder by a nonexistent one: its hash and its commit would reveal its owner."""
    return {"hash": "0" * 64} if isinstance(value, dict) else WITHHELD if value else value


Rule = Callable[[Disguise, Any], Any]


def _of(kind: str) -> Rule:
    return lambda disguise, value: disguise.name(kind, value)


def _keys(kind: str) -> Rule:
    return lambda disguise, value: disguise.keys(kind, value)


def _map(kind: str, of: str) -> Rule:
    """A map from names to names."""
    return lambda disguise, value: {disguise.name(kind, key): disguise.name(of, one) for key, one in value.items()}


def _list(kind: str) -> Rule:
    return lambda disguise, value: [disguise.name(kind, one) for one in value]


def _withheld(disguise: Disguise, value: str) -> str:
    return WITHHELD


def _nothing(disguise: Disguise, value: str) -> str:
    return ""


def _needs(disguise: Disguise, value: list[str]) -> list[str]:
    """Replace what an app needs of a node (`dorm.core.apps.faults.needs_of`): resources, `volume/NAME`, and words."""
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
    return [{"name": disguise.name("labels", one["name"]), "read_only": one.get("read_only", True)} for one in value]


_RULES: dict[str, Rule] = {
    **{field: _of(kind) for field, kind in _NAMES.items()},
    **dict.fromkeys(_TEXTS, _withheld),
    **dict.fromkeys(_DROPPED, _nothing),
    "checkpoints": _folder, "checkpoint_in": _folder, "ledger": _digest, "master_address": _of("addresses"),
    "capacity": _keys("resources"), "used": _keys("resources"), "App.demand": _keys("resources"),
    "NodeJoined.labels": Disguise.labels, "Node.labels": Disguise.labels, "App.served_on": _keys("values"),
    "MeasuredSpeed.type": _of("values"), "NodeOffers.volumes": _keys("labels"), "VolumeOffer.tenants": _list("users"),
    "NodeOffers.secrets": lambda disguise, value: disguise.secrets(value),
    "abilities": lambda disguise, value: [ability for ability in value if ability in ABILITIES],
    "NodeEnrolled.labels": Disguise.labels, "Enrolment.labels": Disguise.labels, "addresses": _list("addresses"),
    "TrustEnabled.nodes": _list("nodes"), "masters": lambda disguise, value: [],
    "masters_before": lambda disguise, value: [],
    "TokenAdded.digest": _no_digest, "Token.digest": _no_digest,
    "Identities.users": _keys("users"), "Identities.nodes": _keys("nodes"), "Identities.tokens": _keys("tokens"),
    "GenerationReleased.lease_ended": _list("nodes"), "PlannedSlot.containers": _keys("nodes"),
    "reasons": _keys("app_references"), "shortage": _keys("app_references"),
    "batches": _keys("app_references"), "tenant_retention_s": _keys("users"), "App.awaited_by": _list("app_references"),
    "AppAccepted.after": _list("app_references"),
    "AppRevised.after": _list("app_references"),
    "NodeSuspected.apps": _list("app_references"), "Suspect.apps": _list("app_references"),
    "NodeSuspected.failures": lambda disguise, value: [WITHHELD] * len(value),
    "Suspect.failures": lambda disguise, value: [WITHHELD] * len(value),
    "PairFailure.needs": _needs, "Suspect.needs": _needs,
    "Node.failed": _keys("app_references"), "App.failed_on": _keys("nodes"), "App.ran_well_on": _list("nodes"),
    "origin_digest": _digest, "Doubt.files": lambda disguise, value: [WITHHELD] * len(value),
    "State.nodes": _keys("nodes"), "State.apps": _keys("app_references"), "State.submissions": _keys("requests"),
    "State.names": _map("app_references", "app_references"),
    "params": Disguise.params, "set_params": Disguise.params, "policy": Disguise.policy, "PolicyPlugin.name": Disguise.policy,
    "State.plugins": lambda disguise, value: {disguise.policy(key): disguise.plain(one) for key, one in value.items()},
    "cause": Disguise.cause, "LogRotated.archive": _nothing, "LogRotated.place": _nothing, "LogRotated.snapshot": _nothing,
    "AppSubmitted.spec": Disguise.document, "Submission.spec": Disguise.document, "AppEditRequested.spec": Disguise.document,
    "runtime": lambda disguise, value: first if (first := runtime_name(value)) in RUNTIMES else "",
}  # fmt: skip
_SPEC: dict[str, Rule] = {
    "name": _of("app_references"), "user": _of("users"), "image": _of("images"), "require": _of("requirements"),
    "from": lambda disguise, value: disguise.origin(value),
    "command": _list("arguments"), "resume": _list("arguments"), "checkpoint": _list("arguments"),
    "demand": lambda disguise, value: {disguise.name("resources", key): one for key, one in value.items()},
    "env": _map("variables", "settings"), "secrets": _map("variables", "settings"), "labels": _map("labels", "values"),
    "after": Disguise.after,
    "speed_on": lambda disguise, value: {disguise.name("values", key): one for key, one in value.items()},
    "workdir": lambda disguise, value: _workdir(value),
    "notify": lambda disguise, value: None,
    "group": lambda disguise, value: (
        value and {**value, "name": disguise.name("app_references", value["name"]), "run": "", "parameters": {}}
    ),
    "volumes": _volumes,
    "requirements": _list("arguments"), "setup": _list("arguments"), "python": _nothing,
}  # fmt: skip


@cache
def _rules(cls: type[msgspec.Struct]) -> tuple[tuple[str, Rule], ...]:
    """Return the rule for each field of a class that may hold a name."""
    found = []
    for field in cls.__struct_fields__:
        exact = f"{cls.__name__}.{field}"
        if exact in _WORDS or field in _WORDS:
            continue
        found.append((field, _RULES.get(exact) or _RULES.get(field) or Disguise.plain))
    return tuple(found)
