"""A tiny model and trace that are shipped, so that a first run needs nothing."""
