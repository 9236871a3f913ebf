"""An incident in Markdown.

Texts of others (names, reasons, messages) stand in code spans, where Markdown, HTML and links mean nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from events.quantities import SECOND
from replay.incident.happenings import FIRST, SORTS
from replay.travel.diff_words import headline, of_app, of_cluster, of_node, of_set_by, of_settings
from replay.words import moment, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.incident.happenings import Happened
    from replay.incident.telling import Incident
    from replay.story.chapters import Chapter
    from replay.travel.diff import Diff

_UNSAFE = re.compile(r"[^\x20-\x7e\u00a0-\u1fff\u2070-\u27bf\u3040-\uffef]")
"""Everything but printable characters; what reorders text is not among these."""


def plain(text: str) -> str:
    """Return untrusted text as a code span of one line."""
    line = _UNSAFE.sub("\ufffd", " ".join(text.split())).replace("`", "'")
    return f"`{line}`" if line else "` `"


def readme(incident: Incident, files: Sequence[str]) -> str:
    """Return README.md: what changed before, what happened, and what is in the folder."""
    length = span((incident.end - incident.begin) / SECOND)
    before = span((incident.begin - incident.before) / SECOND)
    parts = [
        f"# Incident on cluster {plain(incident.cluster)}\n",
        f"{moment(incident.begin)} to {moment(incident.end)} ({length}), records {incident.split + 1} to {incident.last}.\n",
    ]
    if incident.disguised:
        parts.append("Names are pseudonyms, and texts that people or programs wrote are withheld.\n")
    parts.append(f"## What changed before ({before})\n")
    parts.append(_happened(incident.changed_before, "Nothing: no setting, drain, node, master or submission changed."))
    parts.append("## What happened\n")
    parts.append(_happened(incident.happened, "Nothing but decisions, starts, stops and progress."))
    parts.append("## Who is concerned\n")
    parts.append(_concerned(incident))
    parts.append("## In this folder\n")
    parts.append("\n".join(f"* {_FILES[name]}" for name in files if name in _FILES) + "\n")
    parts.append("## Versions\n")
    parts.append(
        "\n".join([f"* made by {incident.made_by}", *(f"* on the log: {plain(one)}" for one in incident.builds)])
    )
    return "\n".join(parts) + "\n"


_FILES = {
    "log.dorm": "`log.dorm`: the log of this time and of the time before.  Every command with `--file` reads it: "
    "`dorm replay open log.dorm`, `dorm explain APP --at SEQ --file log.dorm`, `dorm replay verify --file log.dorm`",
    "timeline.html": "`timeline.html`: the dashboard of that time, for a browser, without network",
    "stories.md": "`stories.md`: what happened to each app and node concerned, and why",
    "diff.md": "`diff.md`: the difference between the start and the end",
    "incident.json": "`incident.json`: all of this for programs; times are UTC nanoseconds",
}


def stories(incident: Incident) -> str:
    """Return stories.md."""
    parts = ["# Stories\n"]
    if not incident.stories:
        parts.append("No app or node was concerned.")
    for story in incident.stories:
        parts.append(f"## {story.kind} {plain(story.name)}\n")
        parts += [_chapter(chapter, incident.begin) for chapter in story.chapters]
        parts.append("")
    return "\n".join(parts) + "\n"


def difference(found: Diff) -> str:
    """Return diff.md."""
    parts = ["# What differs between the start and the end\n", f"{headline(found)}\n"]
    sections = {
        "Apps": [f"{plain(thing.name)} {plain(of_app(thing))}" for thing in found.apps],
        "Nodes": [f"{plain(thing.name)} {plain(of_node(thing))}" for thing in found.nodes],
        "Settings": [plain(text) for text in (*of_settings(found.settings), *map(of_set_by, found.set_by))],
        "Cluster": [plain(of_cluster(change)) for change in found.cluster],
    }
    for title, lines in sections.items():
        if lines:
            parts += [f"## {title}\n", *(f"* {line}" for line in lines), ""]
    if found.same:
        parts.append("Nothing.")
    return "\n".join(parts) + "\n"


def _happened(happened: Sequence[Happened], nothing: str) -> str:
    if not happened:
        return f"{nothing}\n"
    parts = []
    for one in happened:
        parts.append(f"**{SORTS[one.sort]}**\n")
        for index, happening in enumerate(one.kept):
            if one.omitted and index == FIRST:
                parts.append(f"* … {one.omitted:,} more …")
            parts.append(f"* {_clock(happening.time)} ({happening.position}) {plain(happening.text)}")
        parts.append("")
    return "\n".join(parts)


def _concerned(incident: Incident) -> str:
    apps = [plain(story.name) for story in incident.stories if story.kind == "app"]
    nodes = [plain(story.name) for story in incident.stories if story.kind == "node"]
    lines = [f"* apps: {', '.join(apps) or 'none'}", f"* nodes: {', '.join(nodes) or 'none'}"]
    if incident.untold > 0:
        lines.append(f"* and {incident.untold:,} more, to which less happened")
    return "\n".join(lines) + "\n"


def _chapter(chapter: Chapter, begin: int) -> str:
    when = f"{_clock(chapter.time)}{'' if chapter.time >= begin else ' (before)'} ({chapter.position})"
    causes = "".join(f"\n  * ← {cause.position} {plain(cause.text)}" for cause in chapter.causes)
    return f"* {when} {plain(chapter.text)}{causes}"


def _clock(time: int) -> str:
    return moment(time).removesuffix(" UTC")
