"""Explanations and stories: why things are as they are.

    explain        the reason for an app's containers;  explain_words: in words;  explanation: its fields
    story          what happened to an app or a node, in chapters
    app, node      the observers that write them;  app_nodes: the nodes of an app;  chapters: their fields;  words: in words
    speed          the known speed of an app
    live           live adjustments in words
    policies       plans and failures of policies in words
    settings       changes of settings as causes
    surroundings   which app has which places, and the cause of a decision;  spent: where an app's time went

Start with `story`.

`tell` is the complete interface. An explanation also needs an observer: `follow` with a `Witness`, then
`explain.explain`.
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
