"""Workloads and clusters for simulations.

by_name      workloads by the text that names one;  options: the options behind the name
paper        the Dorm paper's workload;  parametric: synthetic ones;  traces/: real ones
pollux, profiles   an app's speed as measured;  tuned: by batch size as well
nodes        clusters;  outages: when nodes fail;  draws: randomness from a seed
declared     what owners declare about their apps;  requests: fixed counts from a trace

The simulator itself (`replay.simulator`) has what all of them return: `workload`, and speeds by containers, `speed`.
"""
