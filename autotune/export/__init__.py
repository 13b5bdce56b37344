"""The winner as something that can be served."""
