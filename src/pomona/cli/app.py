"""The subcommands and their options; what each does lies in a module of its own, imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from pomona import __version__
from pomona.cli.bench import bench_app
from pomona.cli.cache import cache_app
from pomona.cli.draft import draft_app

app = typer.Typer(
    help="Pomona serves large language models on one Mac, to many clients at once.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
models = typer.Typer(help="List and import models.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(models, name="models")
app.add_typer(cache_app, name="cache")
app.add_typer(bench_app, name="bench")
app.add_typer(draft_app, name="draft")

ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The configuration file.")]
HostOption = Annotated[str | None, typer.Option(help="Default 127.0.0.1; beyond loopback needs an API key.")]
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help="Default 8420; 0 lets the system choose.")]


@app.callback(invoke_without_command=True)
def pomona(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def serve(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Ids of imported models, folders or GGUF files, side by side."),
    ] = None,
    host: HostOption = None,
    port: PortOption = None,
    config: ConfigOption = None,
) -> int:
    """Serve models until Ctrl-C.

    Without a name, those of the configuration; without any there, smollm2-135m-instruct, imported at the first start.
    """
    from pomona.cli.serve import run
    from pomona.settings import Flags

    return run(tuple(names or ()), Flags(host, port, config))


@app.command()
def chat(
    model: Annotated[str | None, typer.Argument(help="Default: the first one that the server lists.")] = None,
    url: Annotated[str | None, typer.Option(help="Default: where the configuration says that Pomona listens.")] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before the first message.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 always takes the likeliest token.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The longest answer.")] = None,
    config: ConfigOption = None,
) -> int:
    """Chat with a running server.

    Ctrl-C stops an answer, Ctrl-D ends. Text that is piped in is one question.
    """
    from pomona.cli.chat import Options, run
    from pomona.settings import Flags

    return run(Options(model, system, temperature, max_tokens), url, Flags(config=config))


@models.command("list")
def list_models() -> int:
    """Show the models in the model folder."""
    from pomona.cli.models import show

    return show()


@models.command("import")
def import_model(
    source: Annotated[str, typer.Argument(help="A GGUF file or a Hugging Face model folder.")],
    model_id: Annotated[str | None, typer.Option("--id", help="The name that clients ask for.")] = None,
) -> int:
    """Bring a model into the model folder."""
    from pomona.cli.models import bring

    return bring(source, model_id)


@app.command()
def doctor(host: HostOption = None, port: PortOption = None, config: ConfigOption = None) -> int:
    """Find what is wrong, and name the mend.

    The exit code is 1 if something is.
    """
    from pomona.cli.doctor import run
    from pomona.settings import Flags

    return run(Flags(host, port, config))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"pomona {__version__}")
