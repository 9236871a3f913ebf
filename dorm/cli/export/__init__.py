"""`dorm export`: the log for other tools.

traces   apps as traces of OpenTelemetry
"""
