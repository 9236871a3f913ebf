"""Ready-made things to run: sample apps (`compose.apps`), their image, and clusters to start from.

engine   the few calls of the Docker Engine API that the image needs;  image: builds the image
"""
