"""`dorm bench`.

commands     one command for each benchmark
running      quiet logs, progress, interruptions;  report: the table of figures
api          the HTTP API next to a busy cluster
elastic      live resizing
flood        hostile submissions next to an honest user
run          from `dorm run` to the first line of output
scale        what clusters of some sizes ask of their control plane
oasis        admission by prices
year         a log that grows, and is rotated all along
evaluation   the paper's evaluation and more, into a folder
"""
