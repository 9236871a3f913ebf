"""The colors of apps: apart for every kind of color vision, and readable in both themes."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from dorm.web.page_files import read
from replay.page.colors import COLORS

Color = np.ndarray[tuple[int], np.dtype[np.float64]]

SEEN = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
"""What an eye sees of linear RGB: Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color
Vision Deficiency" (2009), at full severity."""
APART = {"normal": 0.14, "protanopia": 0.078, "deuteranopia": 0.078, "tritanopia": 0.078}
"""Least distance of two colors in OKLab; 0.02 is about what one can tell apart side by side."""
CONTRAST = 3.0
"""Of graphics against what is around them (WCAG 2.2, 1.4.11)."""
_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def themes() -> dict[str, dict[str, str]]:
    """The style sheet's variables by theme.  Dark stands there twice: for the system's choice and for the reader's."""
    text = read("style.css").decode()
    light, system, chosen = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root[^{]*\{([^}]*--paper[^}]*)\}", text)
    )
    assert system == chosen
    return {"light": light, "dark": chosen}


def linear(color: str) -> Color:
    values = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def perceived(color: str, vision: str) -> Color:
    found: Color = _LAB @ np.cbrt(_LMS @ np.clip(SEEN[vision] @ linear(color), 0, 1))
    return found


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(color) @ (0.2126, 0.7152, 0.0722)) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_apps_can_be_distinguished(theme: str) -> None:
    known = themes()[theme]
    colors = [known[f"app{index}"] for index in range(9)]
    assert f"COLORS = {len(colors)};" in read("colors.js").decode()
    assert len(colors) == COLORS
    for vision, least in APART.items():
        close = [
            (one, other)
            for one, other in combinations(colors, 2)
            if np.linalg.norm(perceived(one, vision) - perceived(other, vision)) < least
        ]
        assert (vision, close) == (vision, [])
    for ground in ("card", "cell"):
        assert [color for color in colors if contrast(color, known[ground]) < CONTRAST - 0.005] == []
