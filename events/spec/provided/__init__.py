"""What an app's containers are provided with beside its command.

workdir      the project folder that they start in
volumes      folders of the nodes that they read or write
environment  packages and commands that come before its command
secrets      what must not be on a log
"""
