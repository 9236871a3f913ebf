"""Commands about apps of the past.

history   apps of any age, filtered and sorted
compared  several of them side by side
"""
