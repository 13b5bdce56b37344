"""One tuning study: its plan, its trials, its verdict."""
