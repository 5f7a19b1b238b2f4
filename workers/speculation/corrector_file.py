"""Correctors on disk: a safetensors file each, with an account of itself in the header."""

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np

from pomona.home import Home
from pomona.workers.models.fingerprint import weights_digest
from pomona.workers.speculation.corrector import FORMAT, Account, Correction, Corrector, CorrectorError, identity

log = logging.getLogger(__name__)

KEY = "pomona.corrector"
"""Where the account stands in the header."""


def corrector_path(folder: Path, home: Home) -> Path:
    """Where the corrector of the model in `folder` belongs; it goes by the model's weights, wherever they lie."""
    return home.models / ".correctors" / f"{weights_digest(folder, home.models / '.digests').hex()}.safetensors"


def find_corrector(folder: Path, home: Home) -> Corrector | None:
    """The one that was fitted for the model in `folder`, if there is one; a damaged one is reported and not used."""
    path = corrector_path(folder, home)
    if not path.exists():
        return None
    try:
        return load_corrector(path)
    except CorrectorError as error:
        log.warning("corrector-unusable model=%s: %s", folder.name, error)
        return None


def save_corrector(corrector: Corrector, path: Path) -> None:
    """A safetensors file, whole or not at all; its folder is made. Raises OSError."""
    arrays = {
        f"{depth}.{name}": mx.array(array)
        for depth, each in enumerate(corrector.corrections, 1)
        for name, array in each._asdict().items()
        if array.size
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".safetensors")
    os.close(descriptor)
    try:
        mx.save_safetensors(name, arrays, {KEY: msgspec.json.encode(corrector.account).decode()})
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def load_corrector(path: Path) -> Corrector:
    """Raises CorrectorError for a file that is damaged, or of another kind or version."""
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
        arrays, metadata = loaded
        account = msgspec.json.decode(metadata[KEY], type=Account)
    except (RuntimeError, ValueError, KeyError, OSError, msgspec.DecodeError) as error:
        raise CorrectorError(f"{path} is no corrector's file, or is damaged; fit anew") from error
    if account.format != FORMAT:
        raise CorrectorError(f"{path} is of format {account.format}, this version reads {FORMAT}; fit anew")
    return Corrector(_corrections(path, arrays, account), account)


def _corrections(path: Path, arrays: Mapping[str, mx.array], account: Account) -> list[Correction]:
    none = identity(account.size)
    corrections: list[Correction] = []
    depths = {int(name.partition(".")[0]) for name in arrays if name.partition(".")[0].isdigit()}
    for depth in range(1, len(depths) + 1):
        held = {
            name: np.array(arrays[f"{depth}.{name}"].astype(mx.float32))
            for name in Correction._fields
            if f"{depth}.{name}" in arrays
        }
        each = none._replace(**held)
        rank = each.in_proj.shape[-1]
        fits = (
            each.scale.shape == each.bias.shape in ((1,), (account.size,))
            and each.mean.shape == (account.size,)
            and each.in_proj.shape == (account.size, rank)
            and each.out_proj.shape == (rank, account.size)
        )
        if not held or not fits or not each.finite:
            raise CorrectorError(f"{path} does not hold what it says at depth {depth}; fit anew")
        corrections.append(each)
    return corrections
