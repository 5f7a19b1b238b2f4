"""Speculation: proposers of drafts, how many are worth it, and the pure functions that keep the law exact."""
