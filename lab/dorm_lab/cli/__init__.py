"""Commands of the laboratory, which `dorm.cli.laboratory` finds by entry point.

bench/   `dorm bench NAME`
"""
