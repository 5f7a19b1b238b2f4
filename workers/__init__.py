"""The workers: one process per loaded model, the only rooms that touch MLX."""
