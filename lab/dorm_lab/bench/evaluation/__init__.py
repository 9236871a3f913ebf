"""The evaluation: Dorm against other policies, on the paper's workload and on real traces, in virtual time.

evaluation   runs a plan and writes the report
parts        runs that are compared with each other;  paper, traces: the available ones
plan         what it runs;  kept: runs of an evaluation that was interrupted
crash_loop   what a crash loop costs its neighbor;  sweeps: other costs of restarts, fewer elastic apps
figures      the figures, with their goals;  text: the report's text
"""
