"""Offers of nodes beyond resources, the apps' needs for them, and how both reach the policies.

Policies know only labels and requirements (`events.spec.requirements`). The problem therefore has labels for what a
node offers (`labels_of`), and each app's requirement includes what its spec needs (`require_of`):

    volume/datasets                   offered to everybody
    volume/datasets/for/vision        offered to the apps of `vision`
    volume/scratch/writable           they may write there; with `/for/…` as above
    environment                       its agent builds apps' environments
    environment/3.12                  and has that Python; `environment/any` if images bring their own
    secret/vision/wandb               the secret `wandb` of the user `vision` is there
    secrets/known                     other secrets are not; without it, any may be there
    tenant/only                       the only tenant that it serves
    node/unfit                        it takes nothing new

A volume whose folder is missing on a node now has no label, so nothing new goes there.  A node is unfit while its agent
finds that containers can't start or work there (`agents.fitness`), such as on a full disk, or while the operator's health
program fails.  Containers that already run there are left alone in both cases (`stays_where_it_is`): they may work well,
the mount may be back in a moment, and a resize would start them again on that node.

Most nodes have no label of the last three kinds, and then no app requires anything about them (`Stated`): a cluster of
fit nodes has the problems that it had before there were such labels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from events.identities import tenant_in
from events.kinds import NodeOffers
from events.spec import SpecError, volumes_of
from events.spec.abilities import ABILITIES, labels_with, requirement_with
from events.spec.requirements import LONGEST_DERIVED, requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dorm.core.state import App, Generation, Node, State
    from events.kinds import VolumeOffer
    from events.spec import AppSpec, Volume

_NO_LABEL = re.compile(r"[^A-Za-z0-9_-]")
_MOST_NAMED = 8
_MOST_UNFIT_NAMED = 3
_SECRETS_KNOWN = "secrets/known"
_TENANT_ONLY = "tenant/only"
_UNFIT = "node/unfit"


class Stated(NamedTuple):
    """What nodes of a problem state that earlier ones did not; what none states, no app requires."""

    secrets: bool = True
    """Whether some know their secrets."""
    tenants: tuple[str, ...] | None = None
    """Tenants that are some node's only one; None for any."""
    unfit: bool = True
    """Whether some take nothing new."""


EVERYTHING = Stated()
"""Requirement of as much as a problem could ask for: right for one node, whatever it states."""


def volumes_on(node: Node) -> Mapping[str, VolumeOffer]:
    """Return the volumes that a node offers, by name."""
    return node.offers.volumes if node.offers is not None else {}


def owner_of(app: App) -> str:
    """Return whose app it is for allow-lists: its tenant, or on an open cluster its user."""
    return app.tenant or app.spec.user


def _owners(app: App) -> tuple[str, ...]:
    """Return for whom agents may take an app: its tenant, or on an open cluster its user, as its spec or its author says."""
    tenant = tenant_in(app.submission)
    return (tenant,) if tenant else tuple(dict.fromkeys((app.spec.user, owner_of(app))))


# --- for policies -------------------------------------------------------------------------------------------------------


def abilities_of_new(state: State) -> list[str]:
    """Return what the agent of a node can do that joins only in a plan or a simulation: what the cluster's agents can, and
    without any, what those of this release can."""
    return (
        sorted({ability for node in state.nodes.values() for ability in node.abilities})
        if state.nodes
        else [*ABILITIES]
    )


def offers_of_new(state: State) -> NodeOffers | None:
    """As `abilities_of_new`, what such a node offers: the environments that the cluster's nodes build, and no volume."""
    known = [node.offers for _, node in sorted(state.nodes.items()) if node.offers is not None]
    building = [offers for offers in known if offers.environments]
    if not building:
        return None
    all_bring = any(not offers.pythons for offers in building)  # Images bring their own.
    pythons = {version for offers in building for version in offers.pythons}
    return NodeOffers(environments=True, pythons=[] if all_bring else sorted(pythons))


def labels_of(node: Node) -> Mapping[str, str]:
    """Return a node's labels, including those for its agent's abilities and its offers."""
    labels = labels_with(node.labels, node.abilities)
    if node.offers is None:
        return labels
    offered = volumes_on(node)
    made = dict.fromkeys([*_environments(node.offers), *_secrets(node.offers)], "")
    if node.offers.tenant:
        made[_TENANT_ONLY] = word(node.offers.tenant)
    if node.offers.unfit:
        made[_UNFIT] = ""
    for name, offer in offered.items():
        bases = [f"volume/{name}", *([f"volume/{name}/writable"] if offer.writable else [])]
        for base in () if offer.missing else bases:
            made |= {f"{base}/for/{word(tenant)}": "" for tenant in offer.tenants} or {base: ""}
    return {**labels, **made}


def stated(nodes: Iterable[Node]) -> Stated:
    """Return what some of these nodes state."""
    offers = [node.offers for node in nodes if node.offers is not None]
    return Stated(
        secrets=any(offer.secrets is not None for offer in offers),
        tenants=tuple(sorted({offer.tenant for offer in offers if offer.tenant})),
        unfit=any(offer.unfit for offer in offers),
    )


def require_of(app: App, among: Stated = EVERYTHING) -> str:
    """Return an app's requirement, including what its spec needs from a node of those that state `among`."""
    spec = app.next_spec
    needs = [_need(volume, owner_of(app)) for volume in volumes_of(spec.volumes)]
    if spec.needs_environment:
        needs.append(f"(has {_python(spec)} or has environment/any)" if _chooses(spec) else "has environment")
    if among.secrets:
        needs += [f"(not has {_SECRETS_KNOWN} or has {_secret(spec.user, name)})" for name in _named(spec)]
    if among.tenants is None or any(tenant not in _owners(app) for tenant in among.tenants):
        owners = ", ".join(f'"{word(owner)}"' for owner in _owners(app))
        needs.append(f"(not has {_TENANT_ONLY} or {_TENANT_ONLY} in [{owners}])")
    if among.unfit:
        needs.append(f"not has {_UNFIT}")
    require = requirement_with(spec)
    if not needs:
        return require
    own = [f"({require})"] if require.strip() else []
    return " and ".join([*own, *needs])


def _need(volume: Volume, owner: str) -> str:
    base = f"volume/{volume.name}" + ("" if volume.read_only else "/writable")
    return f"(has {base} or has {base}/for/{word(owner)})"


def _environments(offers: NodeOffers) -> list[str]:
    if not offers.environments:
        return []
    return ["environment", *(f"environment/{version}" for version in offers.pythons or ("any",))]


def _secrets(offers: NodeOffers) -> list[str]:
    if offers.secrets is None:
        return []
    return [_SECRETS_KNOWN, *(_secret(user, name) for user, names in offers.secrets.items() for name in names)]


def _secret(user: str, name: str) -> str:
    return f"secret/{word(user)}/{word(name)}"


def _named(spec: AppSpec) -> list[str]:
    """Return the secrets that a spec names."""
    return sorted(set(spec.secrets.values()))


def _chooses(spec: AppSpec) -> bool:
    """Return whether a spec names a version of Python; whether a path exists only the node knows."""
    return bool(spec.python) and not spec.python.startswith("/")


def _python(spec: AppSpec) -> str:
    return f"environment/{spec.python}"


def word(name: str) -> str:
    """Return a tenant or an app's id as a part of a label's name, one-to-one."""
    return _NO_LABEL.sub(lambda match: f".{ord(match[0]):x}.", name)


def stays_where_it_is(state: State, app: App, generation: Generation) -> bool:
    """Return whether a node where the app runs and should stay takes nothing new now: it is unfit, or a volume of the app
    is missing there.  An app whose owner asked for a restart is not kept on an unfit node."""
    wanted = volumes_of(app.spec.volumes)
    nodes = {container.node: state.nodes.get(container.node) for container in generation.containers.values()}
    return any(
        node is not None
        and not node.draining
        and ((node.unfit and not app.restart_wanted) or any(_is_missing(node, volume.name) for volume in wanted))
        for node in nodes.values()
    )


def _is_missing(node: Node, name: str) -> bool:
    offer = volumes_on(node).get(name)
    return offer is not None and offer.missing


# --- in words -----------------------------------------------------------------------------------------------------------


def check_offered(nodes: Iterable[Node], spec: AppSpec, owner: str) -> list[Node]:
    """Return the nodes that offer everything that a spec needs, even those where a folder is missing now.  Raises SpecError if
    there are none."""
    known = list(nodes)
    wanted = volumes_of(spec.volumes)
    _check_environment(known, spec)
    known = [node for node in known if _builds(node, spec)]
    serving = [node for node in known if all(_serves(node, volume, owner) for volume in wanted)]
    if serving:
        return serving
    for volume in wanted:
        _check_volume(known, volume, owner)
    names = ", ".join(volume.name for volume in wanted)
    raise SpecError(
        f"volumes: no node{' that it may use' if spec.require.strip() else ''} offers all of {names}; "
        "`dorm nodes -o wide` shows what each offers",
        code="spec.volumes.not_together",
    )


def _builds(node: Node, spec: AppSpec) -> bool:
    if not spec.needs_environment:
        return True
    offered = _environments(node.offers) if node.offers is not None else []
    return "environment" in offered and (not _chooses(spec) or _python(spec) in offered or "environment/any" in offered)


def _check_environment(nodes: list[Node], spec: AppSpec) -> None:
    """Raises SpecError if no node builds the environment of the spec."""
    if any(_builds(node, spec) for node in nodes):
        return
    versions = {version for node in nodes if node.offers is not None for version in node.offers.pythons}
    if versions:
        named = ", ".join(sorted(versions, key=lambda version: int(version.rpartition(".")[2])))
        raise SpecError(f"python: no node has Python {spec.python}; they have {named}", code="spec.python.not_offered")
    raise SpecError(
        "requirements: the agents of all nodes are of an earlier release, which builds no environments; upgrade them first",
        code="spec.requirements.not_built",
    )


def _serves(node: Node, volume: Volume, owner: str) -> bool:
    offer = volumes_on(node).get(volume.name)
    if offer is None or not (volume.read_only or offer.writable):
        return False
    return not offer.tenants or owner in offer.tenants


def _check_volume(nodes: list[Node], volume: Volume, owner: str) -> None:
    """Return why no node serves a volume.  Raises SpecError."""
    where = f"volumes.{volume.name}"
    offers = [offer for node in nodes if (offer := volumes_on(node).get(volume.name)) is not None]
    if not offers:
        usable = {
            name
            for node in nodes
            for name, offer in volumes_on(node).items()
            if not offer.tenants or owner in offer.tenants
        }
        named = ", ".join(sorted(usable)[:_MOST_NAMED])
        there = f"they offer {named}" if named else "they offer no volume"
        raise SpecError(
            f"{where}: no node offers a volume of this name; {there} (`dorm agent --volume NAME=PATH` offers one)",
            code="spec.volumes.not_offered",
        )
    allowed = [offer for offer in offers if not offer.tenants or owner in offer.tenants]
    if not allowed:
        raise SpecError(
            f"{where}: no node offers this volume to {owner}; ask an operator (`dorm agent --volume`), or leave it out",
            code="spec.volumes.not_allowed",
        )
    if not volume.read_only and not any(offer.writable for offer in allowed):
        raise SpecError(
            f"{where}: nodes offer this volume for reading only; leave out read_only: false, or ask an operator",
            code="spec.volumes.read_only",
        )


def in_words(up: Sequence[Node], among: Stated, app: App, text: str) -> str:
    """Return a policy's reason in the words of the app's spec: policies know what it needs as labels.  `up` are the nodes of
    its problem, by name, and `among` what they state."""
    required = require_of(app, among)
    if required == app.next_spec.require or required not in text:
        return text
    wanted = volumes_of(app.next_spec.volumes)
    try:
        check_offered(up, app.next_spec, owner_of(app))
    except SpecError as error:
        return str(error)
    for volume in wanted:
        where = [node.id for node in up if _is_missing(node, volume.name)]
        if where and not any(_serves(node, volume, owner_of(app)) and node.id not in where for node in up):
            named = ", ".join(where[:_MOST_NAMED])
            return f"the folder of the volume {volume.name} is missing on {named}; it waits until it is mounted again"
    if lacking := _without_secret(up, app.next_spec):
        return lacking
    names = ", ".join(volume.name for volume in wanted)
    secrets = ", ".join(_named(app.next_spec))
    parts = [f"satisfies {app.next_spec.require}"] if app.next_spec.require.strip() else []
    parts += [f"offers the volume{'s' if len(wanted) > 1 else ''} {names}"] if wanted else []
    builds = bool(app.next_spec.requirements or app.next_spec.setup)
    parts += ["builds its environment" if builds else "has its Python"] if app.next_spec.needs_environment else []
    parts += [f"has the secret{'s' if ', ' in secrets else ''} {secrets}"] if secrets else []
    parts += [f"serves {owner_of(app)}"] if any(_only_serves_others(node, app) for node in up) else []
    unfit = [node for node in up if node.unfit and node.usable and _may_use(node, app)]
    parts += ["takes new containers"] if unfit else []
    phrase = text.replace(f" that satisfies {required}", f" that {' and '.join(parts)}" if parts else "")
    phrase = phrase.replace(f"satisfies {required}", " and ".join(parts) or "is free for it")
    return phrase + "".join(f"; {trouble_with_fitness(node)}" for node in unfit[:_MOST_UNFIT_NAMED])


def _may_use(node: Node, app: App) -> bool:
    """Return whether an app might use a node that takes nothing new now."""
    return requirement(require_of(app, Stated(unfit=False)), LONGEST_DERIVED).matches(labels_of(node))


def _only_serves_others(node: Node, app: App) -> bool:
    return node.offers is not None and node.offers.tenant not in ("", *_owners(app))


def _without_secret(nodes: Sequence[Node], spec: AppSpec) -> str:
    """Return which secret of a spec no node has and where to put it, "" if there is none such."""
    for name in _named(spec):
        if nodes and not any(has_secret(node, spec.user, name) for node in nodes):
            return (
                f"no node has the secret {name} of user {spec.user}: put it at {spec.user}/{name} in the folder of a node's "
                "secrets (`dorm agent --secrets`)"
            )
    return ""


def has_secret(node: Node, user: str, name: str) -> bool:
    """Return whether a user's secret is on a node, as far as the node says."""
    if node.offers is None or node.offers.secrets is None:
        return True
    return name in node.offers.secrets.get(user, ())


def trouble_with_volumes(node: Node) -> str:
    """Return which volumes are missing on a node and what to do, in one line; "" if none is."""
    names = [name for name, offer in sorted(volumes_on(node).items()) if offer.missing]
    if not names:
        return ""
    several = len(names) > 1
    return (
        f"{node.id} offers the volume{'s' if several else ''} {', '.join(names[:_MOST_NAMED])}, and the "
        f"folder{'s are' if several else ' is'} not there: mount it, or start the agent without it"
    )


def trouble_with_fitness(node: Node) -> str:
    """Return why a node takes nothing new, in one line; "" if it does."""
    why = "; ".join(reason.text or reason.code for reason in node.unfit[:_MOST_UNFIT_NAMED])
    return f"{node.id} takes nothing new: {why}" if why else ""


def shown_volumes(node: Node) -> dict[str, str]:
    """Return a node's volumes by name, with the permitted access, in words."""
    return {name: _shown(offer) for name, offer in sorted(volumes_on(node).items())}


def _shown(offer: VolumeOffer) -> str:
    condition = "missing" if offer.missing else "writable" if offer.writable else "read-only"
    return f"{condition}, for {', '.join(offer.tenants)}" if offer.tenants else condition
