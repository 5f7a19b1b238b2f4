"""The law of sampling as it is meant: NumPy float64, one row and one token at a time, without MLX.

`adjusted` and `masked` turn raw logits into those that count, `distribution` those into the probabilities of the next
token, `pick` a number into the token. What `draw` does for whole batches is tested against it.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from pomona.workers.messages import Sampling

Vector = npt.NDArray[np.float64]
Logits = Sequence[float] | Vector | npt.NDArray[np.float32]


def adjusted(
    logits: Logits,
    sampling: Sampling,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    forbidden: Collection[int] = (),
) -> Vector:
    """Logits after repetition, presence and frequency penalties and bias; `forbidden` tokens are ruled out."""
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


def masked(logits: Vector, mask: npt.NDArray[np.uint32]) -> Vector:
    """Only tokens whose bit, `t % 32` of word `t // 32`, is there and set keep their logit."""
    return np.array(
        [
            value if token // 32 < len(mask) and int(mask[token // 32]) >> token % 32 & 1 else -np.inf
            for token, value in enumerate(logits)
        ]
    )


def logprobs(logits: Logits) -> Vector:
    """Natural logarithms of the softmax. Raises ValueError for logits that give none."""
    values = np.array(logits, dtype=np.float64)
    greatest = values.max()
    if not np.isfinite(greatest):
        raise ValueError(
            f"{np.isnan(values).sum()} NaN and {np.isposinf(values).sum()} inf among {len(values)} logits, "
            "and the greatest is not finite"
        )
    shifted = values - greatest
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)


def distribution(logits: Vector, sampling: Sampling, *, xtc: bool = False, spared: Collection[int] = ()) -> Vector:
    """The probabilities that a token is drawn with, from adjusted and masked logits.

    `xtc`: this position is one of those at which the most probable tokens are left out, but for the `spared`; that has
    the chance `xtc_probability`. Raises ValueError for logits that are not finite, at temperature 0 too.
    """
    own = logprobs(logits)
    if sampling.temperature == 0:
        only = np.zeros(len(logits))
        only[int(np.argmax(logits))] = 1.0
        return only
    kept = own > -np.inf
    if sampling.top_p < 1:
        kept &= _nucleus(np.exp(own), sampling.top_p)
    if sampling.min_p > 0:
        kept &= own >= own.max() + np.log(sampling.min_p)
    if xtc:
        kept &= ~_top_choices(np.where(kept, np.exp(own), 0.0), sampling.xtc_threshold, spared)
    if sampling.top_k > 0:
        order = sorted(np.flatnonzero(kept), key=lambda token: (-own[token], token))
        kept &= np.isin(np.arange(len(own)), order[: sampling.top_k])
    tempered = np.where(kept, own, -np.inf)
    weights = np.exp((tempered - tempered.max()) / sampling.temperature)
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def pick(probabilities: Vector, at: float) -> int:
    """The token whose part of the unit interval, in vocabulary order, holds `at`, which is below 1."""
    reached = np.cumsum(probabilities)
    return int(np.searchsorted(reached, min(at, np.nextafter(reached[-1], 0)), side="right"))


def _nucleus(probabilities: Vector, top_p: float) -> npt.NDArray[np.bool_]:
    """Tokens taken from the top until their mass reaches `top_p`, and all that are as probable as the last."""
    mass, least = 0.0, np.inf
    for value in sorted(probabilities, reverse=True):
        if mass >= top_p and least < np.inf:
            break
        mass, least = mass + value, value
    return np.asarray(probabilities >= least)


def _top_choices(weights: Vector, threshold: float, spared: Collection[int]) -> npt.NDArray[np.bool_]:
    """Tokens more probable, among those left, than the least probable one above the threshold."""
    probabilities = weights / weights.sum()
    above = probabilities[probabilities > threshold]
    top = probabilities > (above.min() if len(above) else np.inf)
    top[list(spared)] = False
    return np.asarray(top)
