"""Tests of `compose`."""
