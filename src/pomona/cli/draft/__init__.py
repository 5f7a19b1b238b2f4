"""`pomona draft`: what makes guesses at tokens better. `draft_app` is the typer application."""

from pomona.cli.draft.app import draft_app

__all__ = ["draft_app"]
