"""Tests, in the layout of the packages that they test; `lab` and `simulation` try to break whole clusters."""
