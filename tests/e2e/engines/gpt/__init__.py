"""A project as people have it: a small GPT, trained with DistributedDataParallel and data-loader workers by a shell script.

It knows two things of Dorm: where its snapshot goes, and the file in which a line says that it was saved.
"""
