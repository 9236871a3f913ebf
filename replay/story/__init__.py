"""Explanations and stories: why things are as they are.

    explanation       the reason for an app's containers, and in words
    story             what happened to an app or a node, in chapters
    app_teller, node  the observers that write them;  chapters: their fields;  story_words: in words
    known_speed       the known speed of an app
    settings_causes   changes of settings as causes
    surroundings      which app has which places, and the cause of a decision

Start with `story`.

`tell` is the complete interface.  An explanation also needs an observer: `follow` with a `Witness`, then
`explanation.explain`.
"""

from __future__ import annotations

from replay.story.app_teller import AppTeller
from replay.story.chapters import AppTotals, Cause, Chapter
from replay.story.explanation import ExplainError, Explanation, Witness
from replay.story.node import NodeTeller, NodeTotals
from replay.story.story import Story, StoryError, follow, tell

__all__ = [
    "AppTeller",
    "AppTotals",
    "Cause",
    "Chapter",
    "ExplainError",
    "Explanation",
    "NodeTeller",
    "NodeTotals",
    "Story",
    "StoryError",
    "Witness",
    "follow",
    "tell",
]
