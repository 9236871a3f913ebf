"""Ready-made things to run: sample apps (`compose.apps`), their image, and clusters to start from.

engine   the calls of a Docker engine that the image needs, on aiodocker;  image: builds the image
"""
