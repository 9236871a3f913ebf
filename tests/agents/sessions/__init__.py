"""Sessions in the containers of a node, and who may open them."""
