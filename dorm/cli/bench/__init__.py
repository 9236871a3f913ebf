"""`dorm bench`.

commands     one command for each benchmark;  report: progress and the table of figures
evaluation   the paper's evaluation and more, into a folder
"""
