"""Continues a real log in the simulator.

history    the apps' work, as a log shows it;  fitting, fitting_timings, fitting_types: models of it
fork       a log continued from a moment;  fork_log: kept as an archive
whatif     compares the log's own course, unchanged and changed;  backtest: the error of that
starting   when a waiting app will start

The laboratory measures how faithful all this is: `dorm_lab.recorded`, `dorm_lab.rehearsal`.
"""
