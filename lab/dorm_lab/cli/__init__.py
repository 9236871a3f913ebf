"""Commands of the laboratory, which `dorm.cli.laboratory` finds by entry point.

simulate     `dorm simulate`;  comparisons: its table of policies
bench/       `dorm bench NAME`
"""
