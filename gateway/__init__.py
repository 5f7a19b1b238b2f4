"""The gateway: HTTP in, token events out; everything that a client sees."""
