"""OASiS compared with other schedulers, as in its paper: `dorm bench oasis`.

workload   jobs, machines and utilities (INFOCOM 2018, §V)
rivals     FIFO, DRF, RRH and Dorm on the same jobs, slot by slot
running    runs slot by slot: what jobs have, and when they are done
oasis      the bench: utilities and completion times, decision times, and the ratio to the optimum
"""
