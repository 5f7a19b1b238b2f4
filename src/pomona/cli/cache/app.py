"""The subcommands of `pomona cache` and their options; what each needs is imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

cache_app = typer.Typer(
    help="Look after the prompts that are stored on disk (the SSD tier of the prefix cache).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FolderOption = Annotated[
    Path | None,
    typer.Option("--folder", metavar="FOLDER", help="Default: the folder that `pomona serve` uses."),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The configuration file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@cache_app.command()
def stats(folder: FolderOption = None, config: ConfigOption = None, json: JsonOption = False) -> int:
    """Show how much is stored.

    In all and for each root, which stands for a model, its settings and a tenant. Works beside a running server.
    """
    from pomona.cli.cache.place import resolve
    from pomona.cli.cache.show import show_stats

    return show_stats(resolve(folder, config), json)


@cache_app.command("list")
def list_blocks(folder: FolderOption = None, config: ConfigOption = None, json: JsonOption = False) -> int:
    """Show the stored blocks, last used first.

    END counts the tokens from the beginning of the prompt to the end of the block. Works beside a running server.
    """
    from pomona.cli.cache.place import resolve
    from pomona.cli.cache.show import show_blocks

    return show_blocks(resolve(folder, config), json)


@cache_app.command()
def verify(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only look; works beside a running server.")] = False,
    folder: FolderOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> int:
    """Read all blocks, move bad ones to quarantine.

    The exit code is 1 if one is bad. The server must be stopped.
    """
    from pomona.cli.cache.place import resolve
    from pomona.cli.cache.verify import run

    return run(resolve(folder, config), dry_run, json)


@cache_app.command()
def clear(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    folder: FolderOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> int:
    """Delete all stored blocks.

    Those in quarantine too. The server must be stopped.
    """
    from pomona.cli.cache.clear import run
    from pomona.cli.cache.place import resolve

    return run(resolve(folder, config), yes, json)


@cache_app.command("export")
def export_blocks(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The tar file to write.")],
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="The first digits of a block's key; it goes with all blocks before it."),
    ] = None,
    folder: FolderOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> int:
    """Pack stored blocks into a file.

    Without --key all of them, to be imported on another machine. There they are of use to the same model on the same
    kind of device with the same versions of MLX and mlx-lm, and never asked for by another. Works beside a running
    server.
    """
    from pomona.cli.cache.carry import pack
    from pomona.cli.cache.place import resolve

    return pack(resolve(folder, config), file, tuple(key or ()), json)


@cache_app.command("import")
def import_blocks(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `pomona cache export` wrote.")],
    folder: FolderOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> int:
    """Store the blocks of an exported file.

    Each is checked first. The quota holds: what was not used for longest makes room. The exit code is 1 if a block was
    refused. The server must be stopped.
    """
    from pomona.cli.cache.carry import unpack
    from pomona.cli.cache.place import resolve

    return unpack(resolve(folder, config), file, json)
