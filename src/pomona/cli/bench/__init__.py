"""`pomona bench`: load measurements, and comparisons with mlx_lm. `bench_app` is the typer application."""

from pomona.cli.bench.app import bench_app

__all__ = ["bench_app"]
