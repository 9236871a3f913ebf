"""Commands about the log's past.

commands   `dorm replay`: verify, follow, watch
state      the state at a moment, and the difference between two
step       walk through the log in the terminal;  step_screen: panes and keys;  step_view: what they show
timeline   a picture, or a trace
page       the dashboard as one file;  opened: the dashboard of an archive, served
archive    export and import
bisect     the record that made an outcome inevitable
usage      what was given, used and lost over a span of time
incident   one folder about what happened
"""
