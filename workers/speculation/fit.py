"""Fits of corrections to pairs of hidden states, guessed and true, in float64."""

from typing import assert_never

import numpy as np
import numpy.typing as npt

from pomona.workers.speculation.corrector import Correction, Kind, identity

Matrix = npt.NDArray[np.float64]
LEAST = 1e-6
"""Variances and singular values that count as none."""
RIDGE = 1e-3


def fit(kind: Kind, guessed: npt.ArrayLike, true: npt.ArrayLike, rank: int) -> Correction:
    """What takes the rows of `guessed` nearest to those of `true`, both [pairs, hidden].

    Pairs that are not finite are left out. The identity where no pair is left, or what comes out is not finite.
    """
    x, y = np.asarray(guessed, np.float64), np.asarray(true, np.float64)
    if x.ndim != 2 or x.shape != y.shape:
        raise ValueError(f"pairs of hidden states are [pairs, hidden] each, not {x.shape} and {y.shape}")
    finite = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
    x, y = x[finite], y[finite]
    if not len(x):
        return identity(x.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        found = _fit(kind, x, y, rank)
    return found if found.finite else identity(x.shape[1])


def _fit(kind: Kind, x: Matrix, y: Matrix, rank: int) -> Correction:
    none = identity(x.shape[1])
    match kind:
        case "c0":
            return _affine(none, *_c0(x, y))
        case "c1":
            return _affine(none, *_c1(x, y))
        case "c2":
            return _low_rank(none, x, y, rank)
        case "c1+c2":
            scale, bias = _c1(x, y)
            return _low_rank(_affine(none, scale, bias), x * scale + bias, y, rank)
        case _:
            assert_never(kind)


def _affine(correction: Correction, scale: Matrix, bias: Matrix) -> Correction:
    return correction._replace(scale=scale.astype(np.float32), bias=bias.astype(np.float32))


def _c0(x: Matrix, y: Matrix) -> tuple[Matrix, Matrix]:
    """One factor and one offset for all channels: as spread, and around the same mean."""
    scale = np.std(y) / (np.std(x) + LEAST)
    return np.array([scale]), np.array([y.mean() - scale * x.mean()])


def _c1(x: Matrix, y: Matrix) -> tuple[Matrix, Matrix]:
    """Least squares in each channel."""
    around = x - x.mean(axis=0)
    scale = (around * (y - y.mean(axis=0))).mean(axis=0) / ((around**2).mean(axis=0) + LEAST)
    return scale, y.mean(axis=0) - scale * x.mean(axis=0)


def _low_rank(correction: Correction, x: Matrix, y: Matrix, rank: int) -> Correction:
    """Where `x` varies most, what is missing to `y` there."""
    mean = x.mean(axis=0)
    _, singular, directions = np.linalg.svd(x - mean, full_matrices=False)
    kept = min(rank, int((singular > LEAST).sum()))
    in_proj = directions[:kept].T
    z = (x - mean) @ in_proj
    out_proj = np.linalg.solve(z.T @ z + RIDGE * np.eye(kept), z.T @ (y - x))
    return correction._replace(
        mean=mean.astype(np.float32), in_proj=in_proj.astype(np.float32), out_proj=out_proj.astype(np.float32)
    )
