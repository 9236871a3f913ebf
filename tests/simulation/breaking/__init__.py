"""Deliberately broken code, for `tests.simulation.variants`.

patches   how code is changed: a piece of its source, or a part of the simulation that violates its contract
ways      changes that take more than a line
seeds     which seeds caught which variant
"""
