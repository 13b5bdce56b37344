"""Recording of production traffic: a proxy, a middleware and what they share."""
