"""How long a step takes on this engine: the sweep that measures it, and what follows from it."""
