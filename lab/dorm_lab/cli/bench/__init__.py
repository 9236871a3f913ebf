"""`dorm bench NAME` for the benches of the laboratory.

commands     one command for each benchmark, and `register`, which adds all of them
elastic      live resizing
run          from `dorm run` to the first line of output
scale        what clusters of some sizes ask of their control plane
oasis        admission by prices
evaluation   the paper's evaluation and more, into a folder
"""
