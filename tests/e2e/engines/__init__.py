"""Sample apps of every engine on a real cluster, through a grow and a shrink."""
