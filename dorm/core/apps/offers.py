"""Offers of nodes beyond resources, the apps' needs for them, and how both reach the policies.

Policies know only labels and requirements (`events.spec.requirements`). The problem therefore has labels for what a
node offers (`labels_of`), and each app's requirement includes what its spec needs (`require_of`):

    volume/datasets                   offered to everybody
    volume/datasets/for/vision        offered to the apps of `vision`
    volume/scratch/writable           they may write there; with `/for/…` as above
    environment                       its agent builds apps' environments
    environment/3.12                  and has that Python; `environment/any` if images bring their own

A volume whose folder is missing on a node now has no label, so nothing new goes there.  Containers that already run
there are left alone (`waits_for_volume`): they hold the folder open, and the mount may be back in a moment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from events.kinds import NodeOffers
from events.spec import SpecError, volumes_of
from events.spec.abilities import ABILITIES, labels_with, requirement_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dorm.core.state import App, Generation, Node, State
    from events.kinds import VolumeOffer
    from events.spec import AppSpec, Volume

_NO_LABEL = re.compile(r"[^A-Za-z0-9_-]")
_MOST_NAMED = 8


def volumes_on(node: Node) -> Mapping[str, VolumeOffer]:
    """Return the volumes that a node offers, by name."""
    return node.offers.volumes if isinstance(node.offers, NodeOffers) else {}


def owner_of(app: App) -> str:
    """Return whose app it is for allow-lists: its tenant, or on an open cluster its user."""
    return app.tenant or app.spec.user


# --- for policies -------------------------------------------------------------------------------------------------------


def abilities_of_new(state: State) -> list[str]:
    """Return what the agent of a node can do that joins only in a plan or a simulation: what the cluster's agents can, and
    without any, what those of this release can."""
    return sorted({one for node in state.nodes.values() for one in node.able}) if state.nodes else [*ABILITIES]


def offers_of_new(state: State) -> NodeOffers | None:
    """As `abilities_of_new`, what such a node offers: the environments that the cluster's nodes build, and no volume."""
    known = [node.offers for _, node in sorted(state.nodes.items()) if isinstance(node.offers, NodeOffers)]
    building = [offers for offers in known if offers.environments]
    if not building:
        return None
    all_bring = any(not offers.pythons for offers in building)  # Images bring their own.
    pythons = {version for offers in building for version in offers.pythons}
    return NodeOffers(environments=True, pythons=[] if all_bring else sorted(pythons))


def labels_of(node: Node) -> Mapping[str, str]:
    """Return a node's labels, including those for its agent's abilities and its offers."""
    labels = labels_with(node.labels, node.able)
    if not isinstance(node.offers, NodeOffers):
        return labels
    offered = volumes_on(node)
    made = dict.fromkeys(_environments(node.offers), "")
    for name, offer in offered.items():
        bases = [f"volume/{name}", *([f"volume/{name}/writable"] if offer.writable else [])]
        for base in () if offer.missing else bases:
            made |= {f"{base}/for/{word(tenant)}": "" for tenant in offer.tenants} or {base: ""}
    return {**labels, **made}


def require_of(app: App) -> str:
    """Return an app's requirement, including what its spec needs from a node."""
    return _required(app.next_spec, owner_of(app))


def _required(spec: AppSpec, owner: str) -> str:
    needs = [_need(volume, owner) for volume in volumes_of(spec.volumes)]
    if spec.needs_environment:
        needs.append(f"(has {_python(spec)} or has environment/any)" if _chooses(spec) else "has environment")
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


def _chooses(spec: AppSpec) -> bool:
    """Return whether a spec names a version of Python; whether a path exists only the node knows."""
    return bool(spec.python) and not spec.python.startswith("/")


def _python(spec: AppSpec) -> str:
    return f"environment/{spec.python}"


def word(name: str) -> str:
    """Return a tenant or an app's id as a part of a label's name, one-to-one."""
    return _NO_LABEL.sub(lambda found: f".{ord(found[0]):x}.", name)


def waits_for_volume(state: State, app: App, generation: Generation) -> bool:
    """Return whether a volume of the app is missing on a node where it runs and should stay."""
    wanted = volumes_of(app.spec.volumes)
    if not wanted:
        return False
    nodes = (state.nodes.get(container.node) for container in generation.containers.values())
    return any(
        node is not None and not node.draining and any(_is_missing(node, volume.name) for volume in wanted)
        for node in nodes
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
    offered = _environments(node.offers) if isinstance(node.offers, NodeOffers) else []
    return "environment" in offered and (not _chooses(spec) or _python(spec) in offered or "environment/any" in offered)


def _check_environment(nodes: list[Node], spec: AppSpec) -> None:
    """Raises SpecError if no node builds the environment of the spec."""
    if any(_builds(node, spec) for node in nodes):
        return
    found = {version for node in nodes if isinstance(node.offers, NodeOffers) for version in node.offers.pythons}
    if found:
        named = ", ".join(sorted(found, key=lambda version: int(version.rpartition(".")[2])))
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
    mine = [offer for offer in offers if not offer.tenants or owner in offer.tenants]
    if not mine:
        raise SpecError(
            f"{where}: no node offers this volume to {owner}; ask an operator (`dorm agent --volume`), or leave it out",
            code="spec.volumes.not_allowed",
        )
    if not volume.read_only and not any(offer.writable for offer in mine):
        raise SpecError(
            f"{where}: nodes offer this volume for reading only; leave out read_only: false, or ask an operator",
            code="spec.volumes.read_only",
        )


def in_words(state: State, app: App, text: str) -> str:
    """Return a policy's reason in the words of the app's spec: policies know volumes as labels."""
    wanted = volumes_of(app.next_spec.volumes)
    if require_of(app) == app.next_spec.require or require_of(app) not in text:
        return text
    up = [node for _, node in sorted(state.nodes.items()) if node.condition == "up"]
    try:
        check_offered(up, app.next_spec, owner_of(app))
    except SpecError as error:
        return str(error)
    for volume in wanted:
        where = [node.id for node in up if _is_missing(node, volume.name)]
        if where and not any(_serves(node, volume, owner_of(app)) and node.id not in where for node in up):
            named = ", ".join(where[:_MOST_NAMED])
            return f"the folder of the volume {volume.name} is missing on {named}; it waits until it is mounted again"
    names = ", ".join(volume.name for volume in wanted)
    parts = [f"satisfies {app.next_spec.require}"] if app.next_spec.require.strip() else []
    parts += [f"offers the volume{'s' if len(wanted) > 1 else ''} {names}"] if wanted else []
    builds = bool(app.next_spec.requirements or app.next_spec.setup)
    parts += ["builds its environment" if builds else "has its Python"] if app.next_spec.needs_environment else []
    return text.replace(f"satisfies {require_of(app)}", " and ".join(parts))


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


def shown_volumes(node: Node) -> dict[str, str]:
    """Return a node's volumes by name, with the permitted access, in words."""
    return {name: _shown(offer) for name, offer in sorted(volumes_on(node).items())}


def _shown(offer: VolumeOffer) -> str:
    words = "missing" if offer.missing else "writable" if offer.writable else "read-only"
    return f"{words}, for {', '.join(offer.tenants)}" if offer.tenants else words
