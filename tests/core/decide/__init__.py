"""Tests of decisions."""
