"""Recorded and synthetic traffic."""
