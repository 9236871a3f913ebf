"""`dorm deploy` and `dorm backup`: a cluster on machines of its own.

commands    `dorm deploy example|keys|install|found`
restoring   `dorm deploy restore`
shared      the settings file and the folder of keys, as options
backup      `dorm backup`
"""
