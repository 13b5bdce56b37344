"""Which engine arguments are tried."""
