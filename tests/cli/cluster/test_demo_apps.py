"""The apps that `dorm demo` submits."""

from __future__ import annotations

from dorm.cli import demo


def test_each_app_of_the_demo_is_a_sample_that_can_be_submitted() -> None:
    for _, file, work, changes in demo._ARRIVALS:
        assert demo._spec(demo.SAMPLES / file, work, changes).name
