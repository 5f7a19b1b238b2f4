"""The law of sampling: one statement of it in NumPy (`reference`), and one way to draw by it, for all rows at once."""
