"""What would be: nothing here changes the cluster.

plan     what the next decision would be, and when waiting apps start
whatif   the log continued with a change
"""
