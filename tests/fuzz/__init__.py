"""Malformed input, by the million: whatever comes, an error of ours in bounded time, or something sound.

    python -m tests.fuzz --inputs 1000000 --jobs 2 --seed 0     what `make fuzz` runs
    python -m tests.fuzz --target codec --inputs 20000          one target alone
    python -m tests.fuzz --repeat FILE                          one input that failed once, as it was saved

    mutations   from one good input to many bad ones, on bytes and on trees
    samples     good inputs: golden logs, specs, expressions
    target      what a target is; `targets_*` have them, by what they attack
    running     seeds to inputs, failures to the smallest input that still fails, figures
    found       inputs that failed once: each is tried again by `test_fuzz.py`

Input `i` of a target under a seed is the same everywhere, so a failure is named by target, seed and number.
"""
