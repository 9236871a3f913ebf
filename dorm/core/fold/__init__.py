"""The fold: `evolve(state, record)` advances the state by one record, in place.

    evolve    records of clients, operators and agents; start here
    trust/    what each author may publish

What a record changes is in the module of its concept (`dorm.core`), and what a round does in `dorm.core.rounds`.
"""
