"""A real log played on in the simulator.

history    what a log says of its apps' work;  fitting, fitting_timings: models of it
fork       a log played on from a moment;  fork_log: kept as an archive
whatif     as it was, unchanged, and changed;  backtest: the error of that
starting   when a waiting app will start
recorded   a log simulated again under its own timings;  rehearsal: a real run played with models
"""
