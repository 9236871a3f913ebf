"""Commands of the laboratory, which `dorm.cli.laboratory` finds by entry point.

A package of its own because entry points name it, and the modules load only with their command.

simulate     `dorm simulate`;  comparisons: its table of policies
bench/       `dorm bench NAME`
"""
