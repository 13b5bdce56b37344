"""The engine host and the replay against it."""
