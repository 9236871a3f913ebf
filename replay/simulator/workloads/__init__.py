"""Workloads and clusters for simulations.

workload     apps to come: when, with what spec, how much work
by_name      workloads by the text that names one;  options: the options behind the name
paper        the Dorm paper's workload;  parametric: synthetic ones;  traces/: real ones
speed        an app's speed by its containers;  pollux, profiles: as measured;  tuned: by batch size as well
nodes        clusters;  draws: randomness from a seed
declared     what owners declare about their apps;  requests: fixed counts from a trace
"""
