"""Commands that run in virtual time.

simulate   policies beside each other;  comparisons: the results as tables and documents
whatif     a log continued in the simulator
shadow     another policy beside the one that decides
"""
