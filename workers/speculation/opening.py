"""A model's configuration -> its proposers: those that every model has, and whatever else it is given."""

from pathlib import Path
from typing import Any, NamedTuple

from pomona.config import ModelConfig
from pomona.home import Home
from pomona.workers.models.error import ModelError
from pomona.workers.speculation.anatomy import Unfit, logit_width
from pomona.workers.speculation.corrector import Corrector, CorrectorError
from pomona.workers.speculation.corrector_file import find_corrector, load_corrector
from pomona.workers.speculation.draft_model import open_draft_model
from pomona.workers.speculation.grammar import GrammarProposer
from pomona.workers.speculation.layers import Layers
from pomona.workers.speculation.mtp import SAMPLE, open_mtp
from pomona.workers.speculation.ngram import NgramProposer
from pomona.workers.speculation.proposal import Proposer
from pomona.workers.vocabulary import Vocabulary


class Opened(NamedTuple):
    model: Any
    """Computes what the model does; a proposer may listen to it."""
    proposers: list[Proposer]


def open_proposers(settings: ModelConfig, model: Any, tokenizer: Any, vocabulary: Vocabulary, home: Home) -> Opened:
    """What the configuration of one model asks for; of what it brings along, all but where speculation is off.

    Raises ModelError naming the setting where a draft model, a number of layers, a head or a corrector cannot be used.
    """
    folder, wish = Path(settings.path), settings.speculation
    proposers: list[Proposer] = [NgramProposer(), GrammarProposer()]
    listened = model
    if wish.method != "off":
        mtp = open_mtp(folder, model, tokenizer.encode(SAMPLE), settings.id, _corrector(settings, folder, home))
        if mtp is not None:
            listened = mtp.model
            proposers.append(mtp)
    if wish.draft_model is not None:
        proposers.append(open_draft_model(Path(wish.draft_model), settings.id, vocabulary, logit_width(model)))
    if wish.layers is not None:
        proposers.append(_layers(settings.id, model, wish.layers))
    return Opened(listened, proposers)


def _layers(name: str, model: Any, layers: int) -> Layers:
    try:
        return Layers(model, layers)
    except Unfit as error:
        raise ModelError(f"models.speculation.layers of {name}: {error}; choose another number, or none") from error


def _corrector(settings: ModelConfig, folder: Path, home: Home) -> Corrector | None:
    if settings.speculation.corrector is None:
        return find_corrector(folder, home)
    try:
        return load_corrector(Path(settings.speculation.corrector))
    except CorrectorError as error:
        raise ModelError(f"models.speculation.corrector of {settings.id}: {error}") from error
