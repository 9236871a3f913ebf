"""Ready-made things to run: sample apps (`compose.apps`), their image, clusters to start from, and alert
rules with a dashboard (`monitoring`), and the files of a cluster on several machines (`deploy`).

A package of its own because it is what people copy and change, and Dorm runs without it.

engine   the calls of a Docker engine that the image needs, on aiodocker;  image: builds the image
"""
