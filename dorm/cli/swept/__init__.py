"""What commands about apps say of sweeps.

lines     sweeps as lines of tables, and their names for completion
waiting   which apps a name stands for where a command waits, and one line for each sweep
"""
