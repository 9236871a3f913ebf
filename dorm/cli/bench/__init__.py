"""`dorm bench`.

commands     one command for each benchmark; those of the laboratory are added by `dorm.cli.laboratory`
options      options that several benches have
running      quiet logs, progress, interruptions;  report: the table of figures
api          the HTTP API next to a busy cluster
flood        hostile submissions next to an honest user
year         a log that grows, and is rotated all along
"""
