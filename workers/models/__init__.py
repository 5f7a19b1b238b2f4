"""Models on disk: the library, imports, checks, fingerprints, and loading (`load` alone imports MLX)."""
