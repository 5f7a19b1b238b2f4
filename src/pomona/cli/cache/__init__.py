"""`pomona cache`: the blocks that are stored on disk. `cache_app` is the typer application."""

from pomona.cli.cache.app import cache_app

__all__ = ["cache_app"]
