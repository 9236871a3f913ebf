"""The settings in force: the effect of a `PolicyChanged` on them, for the fold and for checks in advance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.state import can_be_kept
from dorm.policies.registry import built_in, check_params
from events.errors import code_of
from events.identities import tenant_in
from events.quantities import SECOND, short
from events.times import NAMES, SettingRefused, Times, asked, retentions_after, times_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.core.state import App, Settings
    from events.kinds import PolicyChanged, PolicyPlugin

    Plugins = Mapping[str, PolicyPlugin]
    """The plug-in policies that the leading master announced, by name (`State.plugins`)."""

_NONE: Plugins = {}

TIMES = NAMES
"""Settings that a change may contain in addition to the policy and its parameters."""


def times_of(settings: Settings) -> Times:
    return Times(**{name: getattr(settings, name) for name in TIMES})


def retention_of(settings: Settings, tenant: str) -> float:
    """Return how long files of an ended app of this tenant are kept, in seconds."""
    return settings.tenant_retention_s.get(tenant, settings.retention_s)


def kept_until(settings: Settings, app: App) -> int:
    """Return until when (UTC ns) an ended app and its files are kept; 0 while it has not ended."""
    owner = tenant_in(app.submission) or app.spec.user  # As agents know it, which remove the files.
    return app.ended_at + int(retention_of(settings, owner) * SECOND) if app.ended else 0


WEIGHTS = ("apps", "tenants")
"""Things that weights count against; the first is the default."""


def weighs_tenants(settings: Settings) -> bool:
    """Return whether all tenants weigh the same, and weights count within each."""
    return settings.weights == WEIGHTS[1]


def weights_after(settings: Settings, change: PolicyChanged) -> str | None:
    """Return `Settings.weights` once the change is folded."""
    if change.weights is None:
        return settings.weights
    return None if change.weights == WEIGHTS[0] else change.weights


TENANT_APPS = 10_000
"""Number of apps of a tenant that have not ended at most, unless a change says otherwise."""


def most_apps(settings: Settings) -> int:
    """Return how many apps a tenant may have that have not ended."""
    return TENANT_APPS if settings.tenant_apps is None else settings.tenant_apps


def tenant_apps_after(settings: Settings, change: PolicyChanged) -> int | None:
    """Return `Settings.tenant_apps` once the change is folded."""
    if change.tenant_apps is None:
        return settings.tenant_apps
    return None if change.tenant_apps == TENANT_APPS else change.tenant_apps


def suspicion_after(settings: Settings, change: PolicyChanged) -> tuple[int, float]:
    """Return `Settings.suspect_after` and `suspect_within_s` once the change is folded."""
    after = settings.suspect_after if change.suspect_after is None else change.suspect_after
    within_s = settings.suspect_within_s if change.suspect_within_s is None else change.suspect_within_s
    return after, within_s


def tenant_retention_after(settings: Settings, change: PolicyChanged) -> dict[str, float]:
    """Return `Settings.tenant_retention_s` once the change is folded."""
    return retentions_after(settings.tenant_retention_s, change)


def policy_after(settings: Settings, change: PolicyChanged, plugins: Plugins = _NONE) -> tuple[str, dict[str, Any]]:
    """Policy and parameters (those that were set; others are at their defaults) once the change is folded.

    Raises SettingRefused if neither this build nor the leading master has such a policy, or the policy refuses the
    parameters.  Those of a plug-in are not checked: it need not be installed where the log is folded.  Changes nothing.
    """
    chosen = change.policy if change.policy is not None else settings.policy
    params = change.params
    if params is None:
        params = settings.params if change.policy is None else {}
    if change.set_params is not None:
        params = {**params, **change.set_params}
        params = {name: value for name, value in params.items() if value is not None}
    try:
        if chosen not in plugins:
            if not built_in(chosen):
                # The state keeps the text, so it must not depend on this build.
                text = f"unknown policy {short(chosen)}; `dorm policy list` shows the known ones"
                raise SettingRefused(text, code="policy.unknown")
            if params:  # Each policy accepts its own defaults, and to load one takes longer than most commands.
                check_params(chosen, params)
        if not can_be_kept(params):
            raise SettingRefused("the parameters hold a number that none has", code="policy.parameter.out_of_range")
    except SettingRefused:
        raise
    except (LookupError, ArithmeticError, TypeError, ValueError) as error:
        raise SettingRefused(str(error), code=code_of(error)) from None
    return chosen, params


def all_after(settings: Settings, change: PolicyChanged, plugins: Plugins = _NONE) -> Settings:
    """All settings once the change is folded, as a copy.  Raises SettingRefused as `policy_after` does, and HarmfulTimes if
    the times that it leads to would do harm."""
    times_after(times_of(settings), change)
    return asked_of(settings, change, plugins)


def asked_of(settings: Settings, change: PolicyChanged, plugins: Plugins = _NONE) -> Settings:
    """What a change asks for if its times are refused; else as `all_after`.  Raises SettingRefused for its policy."""
    chosen, params = policy_after(settings, change, plugins)
    folder = settings.checkpoints if change.checkpoints is None else change.checkpoints
    known = msgspec.structs.asdict(asked(times_of(settings), change))
    kept = tenant_retention_after(settings, change)
    suspect_after, suspect_within_s = suspicion_after(settings, change)
    return msgspec.structs.replace(
        settings, policy=chosen, params=params, checkpoints=folder, tenant_retention_s=kept,
        weights=weights_after(settings, change), tenant_apps=tenant_apps_after(settings, change),
        suspect_after=suspect_after, suspect_within_s=suspect_within_s, **known,
    )  # fmt: skip


_OPTIONAL = ("tenant_retention_s", "weights", "tenant_apps")


def settings_shown(settings: Settings) -> dict[str, Any]:
    """Return the settings by name, as they are shown: optional ones only if they are set."""
    return {name: value for name, value in msgspec.structs.asdict(settings).items() if value or name not in _OPTIONAL}


def parameters_in_force(settings: Settings, plugins: Plugins = _NONE) -> dict[str, Any]:
    """All parameters of the policy in force, with its defaults: a plug-in's as the leading master announced them.  Raises
    ValueError, as a policy's `check_params`."""
    if built_in(settings.policy):
        return check_params(settings.policy, settings.params)
    announced = plugins.get(settings.policy)
    return {**(announced.defaults if announced is not None else {}), **settings.params}
