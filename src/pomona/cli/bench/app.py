"""`pomona bench`: JSON on standard output, progress and tables on standard error.

What a command needs is imported when it runs, so that this module costs the other commands nothing.
"""

import typer

from pomona.cli.bench.cache_command import cache
from pomona.cli.bench.compare_command import compare
from pomona.cli.bench.limit_command import limit
from pomona.cli.bench.serve_command import serve
from pomona.cli.bench.speculation_command import speculation
from pomona.cli.bench.stall_command import stall

bench_app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Measure a server, compare Pomona with mlx_lm, or with a bare loop on the same model, or the prefix cache.",
)
bench_app.command()(serve)
bench_app.command()(compare)
bench_app.command()(limit)
bench_app.command()(stall)
bench_app.command()(cache)
bench_app.command()(speculation)
