"""`dorm webhooks`: configure webhooks on the log, and deliver them.

commands   add, list, remove, rotate, enable, test, secret
running    the process that delivers
shared     options of both
"""
