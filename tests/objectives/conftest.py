"""Hypothesis without its deadline: how long an example takes says nothing about it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("objectives", deadline=None)
settings.load_profile("objectives")
