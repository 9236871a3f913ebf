"""A change of settings is named as the cause of the decisions that follow it: in stories, explanations and differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.evolve import evolve
from dorm.core.state import State
from events import kinds as k
from replay.diff import diff, of_set_by, settings_between
from replay.moments import AtSequence
from replay.story.explanation import Witness, explain
from replay.story.story import follow, tell
from replay.travel import state_at
from tests.replay.made_log import Story, log_of

if TYPE_CHECKING:
    from replay.story.chapters import Chapter


def static() -> Story:
    """Two nodes, and a policy that gives each app two containers."""
    story = Story(nodes=2)
    story.say(k.PolicyChanged(policy="static", params={"count": 2}), "root")
    story.submit("one", n_max=4)
    return story


def changed() -> Story:
    """`one` has two containers; alice changes the policy, bob a time; later a decision follows, for another reason."""
    story = static()
    story.settle()
    story.work()
    story.say(k.PolicyChanged(policy="dorm", params={"theta2": 0.5}), "alice")
    story.say(k.PolicyChanged(retention_s=1e6), "bob")
    for _ in range(40):
        story.say(k.SealRequested(), "carol")
    story.submit("two", n_max=2)
    story.settle()
    story.work()
    return story


async def chapters(story: Story, name: str) -> list[Chapter]:
    return (await tell(log_of(story.records), name)).chapters


def position(story: Story, who: str) -> str:
    return next(str(record.seq) for record in story.records if record.subject.endswith(f".PolicyChanged.{who}"))


async def test_the_first_decision_about_an_app_after_the_change_names_it() -> None:
    story = changed()
    told = await chapters(story, "one")
    (grown,) = [chapter for chapter in told if chapter.what == "grown"]
    assert grown.causes[0].position == position(story, "alice")
    assert grown.causes[0].text.startswith("alice set policy=dorm, theta2=0.5 4.")
    assert grown.causes[0].text.endswith(" s before")
    named = [chapter for chapter in told if any("alice" in cause.text for cause in chapter.causes)]
    assert named == [grown]
    assert not any("alice" in cause.text for chapter in await chapters(story, "two") for cause in chapter.causes), (
        "it came after the change"
    )
    assert any("alice set policy=dorm" in c.text for chapter in await chapters(story, "n0") for c in chapter.causes)


async def test_explain_names_the_change_that_a_decision_follows() -> None:
    story = changed()
    for name, told in (("one", True), ("two", False)):
        witness = Witness(name)
        state = await follow(log_of(story.records), name, [witness])
        found = explain(state, witness, state.time)
        assert ("alice set policy=dorm, theta2=0.5" in found.text) is told
        assert (found.decided_after is not None) is told
        if found.decided_after is not None:
            assert found.decided_after.position == position(story, "alice")


async def test_an_immediate_decision_names_the_change_and_later_ones_do_not() -> None:
    story = static()
    story.settle()
    story.work()
    story.say(k.PolicyChanged(policy="dorm", params={"theta2": 0.5}), "alice")
    story.settle()
    story.work()
    (grown,) = [chapter for chapter in await chapters(story, "one") if chapter.what == "grown"]
    assert [cause.text for cause in grown.causes] == ["alice set policy=dorm, theta2=0.5"]
    app = story.state.apps[story.state.names["one"]]
    story.say(k.AppUpdated(app=app.id, n_max=1, n_min=1), "dave")
    story.settle()
    (again,) = [chapter for chapter in await chapters(story, "one") if chapter.what == "shrunk"]
    assert not any("alice" in cause.text for cause in again.causes)


async def test_a_change_without_effect_on_a_decision_is_not_a_cause() -> None:
    story = changed()
    told = [*await chapters(story, "one"), *await chapters(story, "n0")]
    assert not any("bob" in cause.text for chapter in told for cause in chapter.causes)


async def test_diff_shows_who_changed_which_setting_and_how() -> None:
    story = changed()
    story.say(k.PolicyChanged(policy="nonsense"), "eve")
    story.say(k.PolicyChanged(set_params={"theta2": 0.25}), "alice")
    log, first = log_of(story.records), int(position(story, "alice")) - 1
    before, after = await state_at(log, AtSequence(first)), await state_at(log)
    found = diff(before, after, await settings_between(log, before, after))
    assert [(one.by, [change.field for change in one.changes][:1]) for one in found.set_by] == [
        ("alice", ["policy"]), ("bob", ["retention_s"]), ("alice", ["theta2"]),
    ]  # fmt: skip
    assert of_set_by(found.set_by[2]).startswith("alice set theta2: 0.5 -> 0.25 at 2023-")
    assert {change.field for change in found.settings} > {"policy", "theta2", "retention_s"}
    assert await settings_between(log, after, before) == found.set_by
    assert await settings_between(log, after, after) == []
    assert [one.by for one in await settings_between(log, before, await state_at(log, AtSequence(first + 1)))] == [
        "alice"
    ]


def test_the_watch_follows_only_effective_changes() -> None:
    from replay.story.settings_causes import SettingsWatch

    state, watch = State(), SettingsWatch()
    story = Story(nodes=0)
    story.say(k.PolicyChanged(policy="nonsense", quiet_ms=300), "eve")
    story.say(k.PolicyChanged(set_params={"theta2": 0.3}), "ann")
    story.say(k.PolicyChanged(set_params={"theta2": None}), "ann")
    effects = []
    for record in story.records:
        event = evolve(state, record).event
        if isinstance(event, k.PolicyChanged):
            effects.append(watch.record(state, event))
    assert [effect and effect.text for effect in effects] == [None, "ann set theta2=0.3", "ann set theta2=default"]
