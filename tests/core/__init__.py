"""Tests of the functional core: no server, no process, no clock."""
