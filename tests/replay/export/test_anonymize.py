"""A log under pseudonyms replays like the original, and reveals no name."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from dorm.core.admission import app_id
from dorm.core.state import MeasuredSpeed
from events import kinds as k
from events.archive.segments import SegmentLog, open_archive
from events.codec import decode, encode
from events.fields import is_silent, types_of
from events.log.records import LogRefused, Record
from events.spec import AppSpec, check_spec
from replay.audit.audit import Report, verify
from replay.export.anonymize import anonymized
from replay.export.disguise import Disguise
from replay.export.export import export
from replay.export.pseudonyms import Names, Pseudonyms
from replay.export.selection import Selection
from replay.moments import AtSequence
from replay.travel import state_at
from tests.core.golden_log import story as golden_story
from tests.core.nonsense import nonsense
from tests.core.records import Bench, joined
from tests.core.suspect_node import suspect
from tests.core.virtual.world import World
from tests.errors import raises
from tests.replay.made_log import CLUSTER, Story, all_facts, log_of, two_apps
from tests.tries import tries

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.core.state import State

SAME = ("start", "end", "events", "rounds", "decisions_checked", "conclusions_checked", "void", "not_checked",
        "not_checked_because")  # fmt: skip


async def rewritten(records: list[Record], **how: Any) -> list[Record]:
    made: list[Record] = []
    async with aclosing((await anonymized(log_of(records), **how)).read()) as batches:
        async for batch in batches:
            made += batch
    return made


def counts(report: Report) -> dict[str, Any]:
    return {name: getattr(report, name) for name in SAME if hasattr(report, name)}


async def same_audit(records: list[Record]) -> list[Record]:
    """The records under other names, which an audit judges like these."""
    made = await rewritten(records)
    assert [(record.seq, record.time) for record in made] == [(record.seq, record.time) for record in records]
    before, after = await verify(log_of(records)), await verify(log_of(made))
    assert counts(after) == counts(before)
    assert (after.divergence is None) == (before.divergence is None), after.divergence
    return made


# --- it replays the same ------------------------------------------------------------------------------------------------


async def test_an_anonymized_real_log_is_decided_again(records: list[Record]) -> None:
    """`records` are of real parts, and of a story."""
    made = await same_audit(records)
    assert (await verify(log_of(made))).good


@pytest.mark.parametrize("seed", range(tries(2, 8)))
async def test_histories_are_decided_again(seed: int) -> None:
    """Masters that fight, agents that are cut off, strangers' nonsense."""
    made = await same_audit(World(seed, policies=("dorm", "static")).run().log)
    assert await same_audit(made) == made


async def test_the_rewritten_log_folds_to_the_same_states() -> None:
    records = golden_story()
    made = await rewritten(records)
    before, after = await state_at(log_of(records)), await state_at(log_of(made))
    assert shape(after) == shape(before)


def shape(state: State) -> list[Any]:
    apps = [
        (app.phase, app.n_min, app.n_max, app.weight, app.generation, app.failures, app.seq, bool(app.end_reason))
        for _, app in sorted(state.apps.items())
    ]
    nodes = [(node.condition, node.draining, node.ports) for _, node in sorted(state.nodes.items())]
    return [apps, nodes, state.counters, state.figures, len(state.submissions), len(state.names)]


@pytest.mark.parametrize(
    ("wrong", "code", "named"),
    [
        ({"n_min": 5, "n_max": 2}, "spec.n_min.above_n_max", "5"),
        ({"demand": {"cpu": 0}}, "spec.demand.all_zero", ""),
        ({"demand": {"tulips": 64}}, "spec.demand.too_large", "r-resource-1"),
        ({"demand": {"tulips": "64 bulbs"}}, "spec.command.missing", ""),
        ({"demand": {"cpu": 64}}, "spec.demand.too_large", "64 cores"),
        ({"require": 'zone == "tulips"'}, "spec.require.no_node", 'label-1 == "value-1"'),
        ({"require": "tulips are =="}, "spec.require.malformed", ""),
        ({"grace": "tulips"}, "spec.command.missing", ""),
        ({"engine": "tulips"}, "spec.command.missing", ""),
        ({"engine_options": {"tulips": 1}}, "spec.command.missing", ""),
        ({"engine": "torchrun", "engine_options": {"rendezvous": "tulips"}}, "spec.command.missing", ""),
        ({"engine": "ps", "n_min": 1, "n_max": 2}, "spec.n_min.below_roles", "ps"),
        ({"retries": {"tulips": 1}}, "spec.command.missing", ""),
        ({"weight": "tulips"}, "spec.command.missing", ""),
        ({"tulips": 1}, "spec.command.missing", ""),
        ({"env": {"DORM_TULIPS": "1"}}, "spec.command.missing", ""),
        ({"command": ["tulips", "\x00"]}, "spec.command.missing", ""),
    ],
)
async def test_refusals_give_reasons_unless_they_quote_a_stranger(wrong: dict[str, Any], code: str, named: str) -> None:
    story = Story()
    story.submit("bad", **wrong)
    story.settle()
    made = await same_audit(story.records)
    rejected = all_facts(made, k.AppRejected)
    assert rejected[0].code == code
    assert named in rejected[0].reason
    assert b"ulip" not in all_bytes(made).lower()


async def test_reports_of_an_app_are_in_a_part_too(tmp_path: Path) -> None:
    """Retries by cause, failures in a row and a fallback are parts of the state that a part begins with."""
    story = Bench(a=4)
    story.running("app", n_min=1, n_max=6, retries={"limit": 3, "out_of_memory": 2})
    story.add(k.AppProgressed(app=story.app().id, generation=1, step=1))
    story.add(joined("b", 2))
    story.settle()
    story.all_exited(code=143, generation=1, asked=True)
    story.settle()
    story.started()
    story.exited(slot=0, code=None, reason="out_of_memory")
    story.settle()
    app = story.app()
    assert (app.retries_used, app.held_most and app.held_most.worked_with) == ({"out_of_memory": 1}, 4)
    story.all_exited(code=143, asked=True)
    cut = len(story.records)
    story.wait(10)
    story.settle()
    part = tmp_path / "part.dorm"
    await export(log_of(story.records), part, selection=Selection(since=AtSequence(cut)))
    made = await anonymized(await open_archive(part))
    after = await state_at(made)
    (found,) = after.apps.values()
    assert (found.retries_used, found.held_most) == (app.retries_used, app.held_most)
    assert (await verify(made)).divergence is None


async def test_anonymizing_twice_gives_the_same_log() -> None:
    records = two_apps().records
    made = await rewritten(records)
    assert made == await rewritten(records)
    assert made == await rewritten(made)


# --- nothing is left ----------------------------------------------------------------------------------------------------

SAID = st.text(st.characters(codec="utf-8", exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
WORDS = (
    "cpu",
    "gpu",
    "memory",
    "node",
    "nodes",
    "room",
    "free",
    "app-1",
    "node-1",
    "user-1",
    "a",
    "a-b",
    "none",
    "Resized",
)
APP_NAMES = st.one_of(
    st.sampled_from(["a", "a-b", "a-b-c", "a-m", "cpu", "node", "app-1", "app-2", "round", "master", "resources"]),
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True),
)
USERS = st.one_of(
    st.sampled_from(["cpu", "alice", "alice2", "n0"]), st.from_regex(r"[A-Za-z0-9_@+-]{1,9}", fullmatch=True)
)
NODE_NAMES = st.one_of(
    st.sampled_from([word for word in WORDS if word != "a"]),
    st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,9}", fullmatch=True),
)
ANYTHING = st.one_of(st.sampled_from(WORDS), SAID)


class People(msgspec.Struct):
    """Everything that may appear in a story."""

    apps: list[str]
    users: list[str]
    nodes: list[str]
    words: list[str]
    label: str
    resource: str

    def said(self) -> list[str]:
        return [*self.apps, *self.users, *self.nodes, *self.words, self.label, self.resource]


PEOPLE = st.builds(
    People,
    apps=st.lists(APP_NAMES, min_size=4, max_size=4),
    users=st.lists(USERS, min_size=2, max_size=2),
    nodes=st.lists(NODE_NAMES, min_size=3, max_size=3, unique=True),
    words=st.lists(ANYTHING.filter(lambda word: word.strip()), min_size=8, max_size=8),
    label=st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,8}", fullmatch=True).filter(
        lambda label: label not in ("and", "or", "not", "in", "has")
    ),
    resource=st.from_regex(r"[a-z][a-z_./-]{0,8}", fullmatch=True),
)
PLAIN = People(
    ["wide", "wide", "late", "late-one"], ["ann", "bob"], ["x", "y", "z"], list("stuvwxyz"), "zone", "licence"
)


def told(people: People, policy: str = "dorm") -> list[Record]:
    """Submissions good and bad, some under one name, labels, reasons, ends, drains, a lost node, nonsense."""
    story, words = Story(nodes=0), [word.replace("\\", "").replace('"', "") for word in people.words]
    for index, node in enumerate(people.nodes):
        story.say(
            k.NodeJoined(
                node=node, address=words[0], capacity={"cpu": 4000, people.resource: 9}, build=words[1],
                ports=(20_000 + 100 * index, 20_099 + 100 * index),
                labels={people.label: words[2], words[3]: words[4], "type": words[index % 2]},
            ), node,
        )  # fmt: skip
    story.say(k.PolicyChanged(policy=policy), people.users[0])
    printable = "".join(one for one in words[2] if one.isprintable())
    for number, name in enumerate(people.apps):
        user = people.users[number % 2]
        story.say(
            k.AppSubmitted(
                spec={
                    "name": name, "user": user, "command": ["sh", people.words[5]], "image": people.words[6],
                    "demand": {"cpu": 1 + number, people.resource: 1}, "n_max": 4, "env": {f"E{number}": people.words[7]},
                    "labels": {"l" + people.words[1]: people.words[0]}, "retries": {"limit": 0},
                    "require": f'not has {people.label} or {people.label} != "{printable}x"',
                }
            ), user,
        )  # fmt: skip
        story.settle()
    story.say(k.AppSubmitted(spec={"name": people.apps[0], "secret": people.words[5]}), people.users[0])
    story.say(k.PolicyChanged(policy=people.words[0], params={people.words[1]: people.words[2]}), people.users[1])
    story.say(k.NodeDrainRequested(node=people.nodes[0], reason=people.words[3]), people.users[0])
    story.say(k.NodeTrustRequested(node=people.nodes[1], reason=people.words[5]), people.users[0])
    story.say(k.SchedulingPaused(reason=people.words[2]), people.users[1])
    story.say(k.AppRetryRequested(app=people.apps[0]), people.users[0])
    story.say(k.AppHoldRequested(app=people.apps[0], reason=people.words[2]), people.users[1])
    story.say(k.AppReleaseRequested(app=people.apps[0], reason=people.words[3]), people.users[0])
    story.say(k.AppHoldRequested(app=people.apps[1], reason=people.words[4]), people.users[0])
    story.settle()
    story.say(k.SchedulingResumed(reason=people.words[1]), people.users[0])
    story.say(k.NodeForgetRequested(node=people.nodes[0], reason=people.words[4]), people.users[0])
    story.settle()
    for live in list(story.state.names):
        app = story.state.apps[story.state.names[live]]
        if app.settled:
            container = next(iter(app.generations[app.generation].containers.values()))
            story.say(
                k.ContainerExited(
                    app=app.id, generation=app.generation, slot=container.slot, node=container.node, exit_code=1,
                    message=people.words[4],
                ), container.node,
            )  # fmt: skip
            break
    story.settle()
    story.say(k.AppCancelRequested(app=people.apps[2], reason=people.words[6]), people.users[1])
    story.say(k.AppUpdated(app=people.words[0], weight=2.0), people.users[1])
    story.settle()
    for subject, body in nonsense(people.nodes[0], people.apps[0])[:-3]:
        story.store(f"dorm.{CLUSTER}.{subject}", body)
    story.settle()
    story.submit(people.apps[2])
    story.settle()
    story.conclude({people.nodes[1]: 0})
    story.settle()
    return story.records


def all_bytes(records: list[Record]) -> bytes:
    return msgspec.msgpack.encode(records)


@cache
def keywords() -> bytes:
    """What is in there whatever people said; a code that only some histories have is named."""
    return all_bytes(asyncio.run(rewritten(told(PLAIN)))) + b" no_nodes"


@pytest.mark.soak
@settings(max_examples=tries(4, 100), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(people=PEOPLE, policy=st.sampled_from(["static", "static", "dorm"]))
@example(
    policy="dorm",
    people=People(
        ["cpu", "cpu", "cpu-a", "node"], ["cpu", "node"], ["cpu", "node", "free"], list(WORDS[:8]), "cpu", "d"
    ),
)
def test_no_name_survives_anonymization(people: People, policy: str) -> None:
    records = told(people, policy)
    made = asyncio.run(same_audit(records))
    raw = all_bytes(made)
    for word in people.said():
        if len(word.encode()) >= 4 and word.encode() not in keywords():
            assert word.encode() not in raw, word
    for number in range(4):
        for record in records:
            for app in (app_id(people.apps[number], f"{user}.{record.seq - 1}") for user in people.users):
                assert app.encode() not in raw


async def test_an_anonymized_archive_holds_no_names(tmp_path: Path) -> None:
    people = People(
        ["felidae-large", "felidae", "felidae", "canis"], ["henrietta", "ottokar"], ["margrave", "burgrave", "viscount"],
        ["tortoise", "pangolin", "axolotl", "wombat", "capybara", "manatee", "quokka", "narwhal"], "province", "unicorns",
    )  # fmt: skip
    path = tmp_path / "incident.dorm"
    await export(await anonymized(log_of(told(people))), path)
    archive = await open_archive(path)
    assert isinstance(archive, SegmentLog)
    assert archive.anonymized
    assert archive.header.cluster == "cluster"
    records = [record async for batch in archive.read() for record in batch]
    snapshots = [await archive.snapshots.get(info) or b"" for info in await archive.snapshots.infos()]
    await archive.close()
    raw = all_bytes(records) + b"".join(snapshots) + path.read_bytes()
    for word in people.said():
        assert word.encode() not in raw, word
    report = await verify(log_of(records))
    assert report.divergence is None
    assert report.decisions_checked > 5


def test_every_text_says_what_it_holds() -> None:
    """A text that says nothing would be dropped, in events as in specs."""
    kept = ("Round.events", "AppFailed.exit_codes", "PolicyPlugin.defaults", "MasterElected.policies")
    silent = [
        f"{cls.__name__}.{name}"
        for cls in {
            *get_args(k.Published),
            *get_args(k.MasterFact),
            k.Placed,
            k.Resize,
            k.Waiting,
            k.ContainerUse,
            AppSpec,
        }
        for name, kind in types_of(cls).items()
        if is_silent(kind)
    ]
    assert set(silent) <= set(kept)


# --- parts, and what can't be -------------------------------------------------------------------------------------------


async def test_a_suspect_node_keeps_its_failures_without_names_or_texts() -> None:
    made = await rewritten(suspect().records)
    state = await state_at(log_of(made))
    (node,) = [one for one in state.nodes.values() if one.suspect is not None]
    assert node.suspect is not None
    assert len(node.suspect.apps) == 3
    assert all(app in state.apps and node.id in state.apps[app].failed_on for app in node.suspect.apps)
    assert node.suspect.failures == ["(withheld)"] * 3
    assert list(node.failed) == [app.id for app in state.apps.values() if app.failed_on]
    raw = all_bytes(made)
    assert not any(word in raw for word in (b"no such file", b"three", b'"bad"'))


async def test_a_part_starts_with_its_state(tmp_path: Path) -> None:
    """Whether all is anonymized and a part taken, or a part is taken and that anonymized."""
    records = two_apps().records
    one, part, other = tmp_path / "one.dorm", tmp_path / "part.dorm", tmp_path / "other.dorm"
    since = Selection(since=AtSequence(30))
    await export(await anonymized(log_of(records)), one, selection=since)
    await export(log_of(records), part, selection=since)
    source = await open_archive(part)
    await export(await anonymized(source), other)
    reports = []
    for path in (part, one, other):
        archive = await open_archive(path)
        reports.append(await verify(archive))
        assert reports[-1].divergence is None
        await archive.close()
    assert counts(reports[1]) == counts(reports[0])
    assert counts(reports[2]) == counts(reports[0])
    await source.close()


async def test_nodes_can_keep_their_names() -> None:
    records = two_apps().records
    made = await rewritten(records, keep_nodes=True)
    assert (await verify(log_of(made))).good
    assert sorted((await state_at(log_of(made))).nodes) == sorted((await state_at(log_of(records))).nodes)


async def test_it_only_reads() -> None:
    log = await anonymized(log_of(two_apps().records))
    assert not hasattr(log, "append")
    with raises(LogRefused, "log.not_growing"):
        async for _ in log.read(follow=True):
            pass
    last = await log.last_on("dorm.cluster.round.master")
    assert last is not None
    assert isinstance(decode(last), k.Round)


# --- names --------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@given(
    submitted=st.lists(st.tuples(APP_NAMES, st.integers(0, 30)), max_size=40),
    nodes=st.sets(SAID),
    resources=st.sets(st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,8}", fullmatch=True)),
)
def test_pseudonyms_keep_the_order_of_names(
    submitted: list[tuple[str, int]], nodes: set[str], resources: set[str]
) -> None:
    apps = {app_id(name, f"{name}.{number}"): (name, f"{name}.{number}") for name, number in submitted}
    names = Names(apps=apps, app_names={name for name, _ in submitted}, nodes=nodes, resources=resources)
    made = Pseudonyms(names)
    for kind in (made.app_ids, made.nodes, made.resources):
        ordered = [kind[name] for name in sorted(kind)]
        assert ordered == sorted(set(ordered))
    for app, (name, submission) in apps.items():
        assert made.app_ids[app] == app_id(made.app_names[name], made.requests[submission])
    assert len(set(made.app_names.values())) == len(made.app_names)


def test_requirements_ask_the_same_in_the_same_order() -> None:
    texts = {'zone == "a"', "has zone", 'b in ["x", "y"] and not has c', 'not (a == 1 or b == "x")', " ", 'zone=="a"'}
    labels, values = {"zone", "a", "b", "c"}, {"a", "x", "y", "1"}
    made = Pseudonyms(Names(requirements=texts, labels=labels, values=values)).requirements
    assert [made[text] for text in sorted(made)] == sorted(set(made.values()))
    assert made['zone == "a"'].strip() == 'label-4 == "value-2"'


def test_a_walk_leaves_numbers_alone() -> None:
    class Naming:
        def name(self, kind: str, name: str) -> str:
            return name.upper()

        def request(self, text: str) -> str:
            return text.upper()

        def beginning(self, prefix: str) -> list[str]:
            return []

    event = k.ContainerExited(
        app="a", generation=3, slot=1, node="n", exit_code=137, reason="out_of_memory", message="m",
        doubt=k.Doubt(files=["secret-project.pt", "b"], more=3, before=True, aside=".doubtful/generation-3"),
    )  # fmt: skip
    made = Disguise(Naming()).struct(event)
    doubt = k.Doubt(files=["(withheld)"] * 2, more=3, before=True, aside="(withheld)")
    assert encode(made) == encode(msgspec.structs.replace(event, app="A", node="N", message="(withheld)", doubt=doubt))


def test_types_of_nodes_have_the_same_names_everywhere() -> None:
    """In labels, in what was measured, and in what owners declare: policies compare them."""

    class Naming:
        def name(self, kind: str, name: str) -> str:
            return name if name == "type" else f"{kind.replace('_', '-')}-{len(name)}"

        def request(self, text: str) -> str:
            return text

        def beginning(self, prefix: str) -> list[str]:
            return [prefix]

    disguise = Disguise(Naming())
    measured = MeasuredSpeed(containers=2, nodes=1, type="a100", steps=5, ns=10**9)
    assert disguise.struct(measured).type == "values-4"
    joined_there = k.NodeJoined(node="n", address="a", capacity={}, ports=(1, 2), labels={"type": "a100"})
    assert disguise.struct(joined_there).labels == {"type": "values-4"}
    spec = check_spec({"name": "x", "command": ["y"], "demand": {"cpu": 1}, "speed_on": {"a100": [[1, 2.0]]}}).stored()
    assert disguise.struct(spec).speed_on == {"values-4": [(1, 2.0)]}


async def test_a_sweep_keeps_its_limit_and_none_of_its_words() -> None:
    story = Story()
    for index in range(3):
        group = {"name": "lr", "run": "ab", "index": index, "count": 3, "parallel": 1, "parameters": {"rate": "high"}}
        story.submit(f"lr-{index:04}", n_max=1, group=group, env={"DATA": "x"})
    story.settle()
    made = await same_audit(story.records)
    raw = b"".join(record.body for record in made)
    assert all(word not in raw for word in (b"rate", b"RATE", b"high"))
    state = await state_at(log_of(made))
    assert [app.spec.group.parallel for app in state.apps.values() if app.spec.group is not None] == [1, 1, 1]
    assert len({app.spec.group.name for app in state.apps.values() if app.spec.group is not None}) == 1
    assert sorted(app.waiting.code for app in state.apps.values() if app.waiting is not None) == ["group", "group"]


async def test_secrets_are_decided_about_in_the_same_way_under_other_names() -> None:
    bench = Bench()
    bench.add(joined("n1", 8, offers=k.NodeOffers(secrets={"ann": ["hugging"]}, tenant="ben")))
    bench.add(joined("n2", 2, offers=k.NodeOffers(secrets={"ann": ["wandb"], "ben": ["wandb"]})))
    bench.add(joined("n3", 8, offers=k.NodeOffers(secrets={}, unfit=[k.Unfit("health_program", "rack 7 is hot")])))
    for user, secret in (("ann", "wandb"), ("ann", "hugging"), ("ben", "wandb"), ("cleo", "")):
        bench.submit(f"{user}-{secret}", user=user, n_max=2, secrets={"KEY": secret} if secret else {})
        bench.settle()
    assert len({app.current is None for app in bench.state.apps.values()}) == 2
    made = await same_audit(bench.records)
    told = all_bytes(made)
    assert not any(word in told for word in (b"wandb", b"hugging", b"ben", b"rack 7"))
    assert b"health_program" in told
