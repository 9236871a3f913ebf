"""Who a node is, and whom its agent believes."""
