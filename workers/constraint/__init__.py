"""Constrained decoding: what an answer may be made of, and which token may come next."""
