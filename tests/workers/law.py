"""The law of sampling once more, in NumPy float64, one row and one token at a time; nothing of the worker's is used."""

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pomona.workers.messages import Sampling

Vector = npt.NDArray[np.float64]


def adjusted(
    logits: Sequence[float] | npt.NDArray[np.float32],
    sampling: Sampling,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    forbidden: Sequence[int] = (),
) -> Vector:
    """Logits after repetition, presence and frequency penalties and bias."""
    values = np.array(logits, dtype=np.float64)
    for token in {*prompt, *output} if sampling.repetition_penalty != 1 else ():
        if values[token] > 0:
            values[token] /= sampling.repetition_penalty
        else:
            values[token] *= sampling.repetition_penalty
    for token in set(output):
        values[token] -= sampling.presence_penalty
    for token in output:
        values[token] -= sampling.frequency_penalty
    for token, bias in sampling.logit_bias.items():
        values[token] += bias
    values[list(forbidden)] = -np.inf
    return values


def logprobs(logits: Sequence[float] | Vector | npt.NDArray[np.float32]) -> Vector:
    values = np.array(logits, dtype=np.float64)
    shifted = values - values.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)


def distribution(logits: Vector, sampling: Sampling) -> Vector:
    """The probabilities that a token is drawn with, from adjusted logits."""
    if sampling.temperature == 0:
        only = np.zeros(len(logits))
        only[int(np.argmax(logits))] = 1.0
        return only
    own = logprobs(logits)
    kept = np.ones(len(own), dtype=bool)
    if sampling.top_p < 1:
        kept &= _nucleus(np.exp(own), sampling.top_p)
    if sampling.min_p > 0:
        kept &= own >= own.max() + np.log(sampling.min_p)
    if sampling.top_k > 0:
        order = sorted(np.flatnonzero(kept), key=lambda token: (-own[token], token))
        kept &= np.isin(np.arange(len(own)), order[: sampling.top_k])
    tempered = np.where(kept, (own - own.max()) / sampling.temperature, -np.inf)
    weights = np.exp(tempered)
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _nucleus(probabilities: Vector, top_p: float) -> npt.NDArray[np.bool_]:
    """Tokens taken from the top until their mass reaches `top_p`, and all that are as probable as the last."""
    mass, least = 0.0, np.inf
    for value in sorted(probabilities, reverse=True):
        if mass >= top_p and least < np.inf:
            break
        mass, least = mass + value, value
    return np.asarray(probabilities >= least)


def number(seed: int, position: int) -> float:
    digest = hashlib.blake2b(struct.pack("<QQI", seed, position, 0), digest_size=8).digest()
    return float((struct.unpack("<Q", digest)[0] >> 11) / 2**53)


def pick(probabilities: Vector, at: float) -> int:
    """The token whose part of the unit interval, in vocabulary order, holds `at`."""
    return int(np.searchsorted(np.cumsum(probabilities), at, side="right"))


def margin(probabilities: Vector, at: float) -> float:
    """How far `at` lies from the nearest border between two tokens; below rounding both are right."""
    return float(np.abs(np.cumsum(probabilities) - at).min())
