"""Who may enter the containers of a node, and what a session is."""
