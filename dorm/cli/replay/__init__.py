"""Commands about the log's past.

commands   `dorm replay`: verify, follow, watch
state      the state at a moment, and the difference between two
step       walk through the log in the terminal;  step_screen: panes and keys;  step_view: what they show
timeline   a page, a picture, or a trace
archive    export and import
bisect     the record that made an outcome inevitable
"""
