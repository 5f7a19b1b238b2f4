"""The command `pomona`: one module for each subcommand, imported when it runs, none of them importing MLX."""
