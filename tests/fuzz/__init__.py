"""Malformed input by the million: every input gives one of our errors in bounded time, or a valid result.

    python -m tests.fuzz --inputs 1000000 --jobs 2 --seed 0     what `make fuzz` runs
    python -m tests.fuzz --target codec --inputs 20000          one target alone
    python -m tests.fuzz --repeat FILE                          one saved input that failed once

    samples     good inputs: golden logs, specs, expressions
    edits       from one good input to many bad ones, by decisions that are read from bytes
    target      what a target is; `targets_*` have them, by the code that they attack
    running     seeds to decisions, failures to the smallest input that still fails, figures
    found       inputs that failed once: `test_fuzz.py` tries each again

Input `i` of a target under a seed is the same everywhere, so a failure is named by target, seed and number.

An input follows from a string of random bytes.  Hypothesis shrinks the strings whose input failed to the smallest one that
fails at the same place.  It does not draw them: an input drawn by its strategies costs about ten times the CPU, so a defect
that one input in ten thousand shows would take ten times as long to find.
"""
