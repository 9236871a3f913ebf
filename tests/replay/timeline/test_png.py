"""A timeline as one picture: it exists, names what it leaves out, and is reproducible."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING

from matplotlib.image import imread

from replay.timeline import png as timeline_png
from replay.timeline.fold import timeline
from replay.timeline.lanes import Timeline, TimelineError
from replay.timeline.png import png
from tests.errors import raises
from tests.replay.busy import busy_log
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    import pytest
    from matplotlib.figure import Figure

    from events.log.records import Record


def drawn(records: list[Record]) -> Timeline:
    return asyncio.run(timeline(log_of(records)))


def test_a_picture(written: list[Record]) -> None:
    picture = drawn(written)
    file = png(picture, "what $happened$ to \\alpha <b>")
    image = imread(io.BytesIO(file), format="png")
    height, width, _ = image.shape
    assert width == 1950
    assert 700 < height < 2000
    assert len({tuple(pixel) for pixel in image[height // 2 :: 7, ::7].reshape(-1, 4).tolist()}) > 5
    assert png(picture, "what $happened$ to \\alpha <b>") == file


def test_the_most_affected_of_many_apps_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = drawn(busy_log(2500, apps=16, nodes=6, tick_s=20))
    monkeypatch.setattr(timeline_png, "APPS", 5)
    shown: list[Timeline] = []
    draw = timeline_png._draw

    def note(some: Timeline, title: str) -> Figure:
        shown.append(some)
        return draw(some, title)

    monkeypatch.setattr(timeline_png, "_draw", note)
    assert png(picture, "busy").startswith(b"\x89PNG")
    assert len(shown[0].apps) == 5
    assert f"The 5 most affected of {len(picture.apps)} apps" in shown[0].notes[0]
    drawing = draw(shown[0], "busy")
    assert any("The 5 most affected of" in text.get_text() for text in drawing.texts)
    labels = [label.get_text() for label in drawing.axes[4].get_yticklabels()]
    assert labels == [f"{lane.name}  {lane.peak}" for lane in shown[0].apps.values()]


def test_nothing_to_draw() -> None:
    with raises(TimelineError, "timeline.empty"):
        png(drawn([]), "empty")
