"""The batch form of each kind of cache that mlx-lm's models ask for, behind one interface."""
