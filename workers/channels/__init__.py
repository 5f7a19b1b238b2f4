"""What a model writes in parts: thought, calls and answer, the marks between them, and what may come next."""
