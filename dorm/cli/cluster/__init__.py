"""Commands that run a cluster, its nodes and its settings.

up, demo        a whole cluster on this machine
master, agent   one process of a cluster
masters         which master leads, and which follow;  metrics: the option `--metrics`
rotation        the options `--archives`, `--rotate-size`, `--rotate-age` and `--keep`
serve           the HTTP API and the dashboard;  tokens: with which programs call it
top             the cluster as it changes;  top_view: its picture;  top_keys: its keys
policy          show and change settings;  policy_dry_run: what a change would do
"""
