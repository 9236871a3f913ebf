"""Tests of the rules about one app."""
