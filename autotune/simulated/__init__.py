"""Engines that are simulated, behind the protocol of real ones, and the profiles they follow."""
