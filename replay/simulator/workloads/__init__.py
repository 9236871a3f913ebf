"""Workloads and clusters for simulations.

workload     apps to come: when, with what spec, how much work
by_name      workloads by the text that names one;  options: what stands behind the name
paper        the Dorm paper's workload;  parametric: synthetic ones;  traces/: real ones
speed        how fast an app works with so many containers;  pollux, profiles: as measured
nodes        clusters;  draws: randomness from a seed
declared     what owners say of their apps;  requests: fixed counts from a trace
"""
