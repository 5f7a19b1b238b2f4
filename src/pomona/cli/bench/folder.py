"""Which folder the model to compare lies in."""

from pathlib import Path

from pomona.cli.bench.problem import BenchError
from pomona.workers.models.embedded import ID, fetch_embedded
from pomona.workers.models.error import ModelError
from pomona.workers.models.gguf_weights import Progress


def model_folder(model: str | None, library: Path, progress: Progress) -> Path:
    """A model folder that is named, or an id in `library`; the built-in model is fetched if it is not there yet.

    Raises BenchError if there is no such model.
    """
    if model is None or model == ID:
        try:
            return fetch_embedded(library, progress=progress).resolve()
        except ModelError as error:
            raise BenchError(str(error)) from error
    for place in (Path(model).expanduser(), library / model):
        if (place / "config.json").is_file():
            return place.resolve()
    raise BenchError(
        f"no model {model}, neither as a folder nor in {library}: `pomona models list` shows what is there"
    )
