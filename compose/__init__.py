"""Ready-made things to run: sample apps (`compose.apps`), their image, clusters to start from, and alert
rules with a dashboard (`monitoring`), and what a cluster on machines of its own consists of (`deploy`).

engine   the calls of a Docker engine that the image needs, on aiodocker;  image: builds the image
"""
