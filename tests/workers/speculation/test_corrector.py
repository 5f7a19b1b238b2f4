"""Corrections recover what was planted, change nothing where there is nothing to learn, and survive their file."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pomona.home import Home
from pomona.workers.speculation.corrector import (
    Account,
    Correction,
    Corrector,
    CorrectorError,
    accepted_drafts,
    identity,
)
from pomona.workers.speculation.corrector_file import corrector_path, find_corrector, load_corrector, save_corrector
from pomona.workers.speculation.fit import fit
from tests.support.tiny_model import build_tiny_model

SIZE = 24
SOURCE = np.random.default_rng(7)
GUESSED = SOURCE.standard_normal((400, SIZE)) * SOURCE.uniform(0.5, 2, SIZE) + SOURCE.standard_normal(SIZE)


def account(**fields: Any) -> Account:
    told: dict[str, Any] = {"kind": "c1", "hidden": "post", "size": SIZE, "rank": 0, "blend": 1.0}
    return Account(**{**told, "before": (0.5, 0.4), "after": (0.5, 0.6), **fields})


def corrected(correction: Correction, hidden: np.ndarray) -> np.ndarray:
    return np.array(Corrector([correction], account())(mx.array(hidden.astype(np.float32)), 1))


def test_c0_recovers_one_factor_and_one_offset() -> None:
    found = fit("c0", GUESSED, 0.7 * GUESSED - 0.3, rank=4)
    np.testing.assert_allclose((found.scale, found.bias), ([0.7], [-0.3]), atol=1e-4)
    np.testing.assert_allclose(corrected(found, GUESSED), 0.7 * GUESSED - 0.3, atol=1e-4)


def test_c1_recovers_a_factor_and_an_offset_of_each_channel() -> None:
    factors, offsets = SOURCE.uniform(-2, 2, SIZE), SOURCE.standard_normal(SIZE)
    true = GUESSED * factors + offsets
    found = fit("c1", GUESSED, true, rank=4)
    np.testing.assert_allclose((found.scale, found.bias), (factors, offsets), atol=1e-4)
    np.testing.assert_allclose(corrected(found, GUESSED), true, atol=1e-3)


def planted(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Guesses that vary most in a few directions, and true states that differ by a map of these."""
    basis = np.linalg.qr(SOURCE.standard_normal((SIZE, rank)))[0]
    guessed = 0.1 * SOURCE.standard_normal((400, SIZE)) + 5 * SOURCE.standard_normal((400, rank)) @ basis.T
    step = basis @ SOURCE.standard_normal((rank, SIZE))
    return guessed, guessed + (guessed - guessed.mean(axis=0)) @ step


def test_c2_recovers_a_map_of_low_rank() -> None:
    guessed, true = planted(3)
    before = np.abs(true - guessed).mean()
    assert np.abs(true - corrected(fit("c2", guessed, true, rank=3), guessed)).mean() < 0.02 * before
    assert np.abs(true - corrected(fit("c2", guessed, true, rank=1), guessed)).mean() > 0.2 * before


def test_c2_alone_leaves_a_constant_shift_and_behind_c1_it_does_not() -> None:
    guessed, true = planted(2)
    true = true + 3
    assert np.abs((true - corrected(fit("c2", guessed, true, rank=2), guessed)).mean(axis=0) - 3).max() < 0.01
    both = fit("c1+c2", guessed, true, rank=SIZE)
    assert np.abs(true - corrected(both, guessed)).mean() < 0.01
    assert np.abs(true - corrected(fit("c1", guessed, true, rank=0), guessed)).mean() > 0.1


@pytest.mark.parametrize(("pairs", "rank", "kept"), [(400, 99, SIZE), (5, 99, 4), (1, 3, 0), (400, 0, 0), (400, 2, 2)])
def test_the_rank_is_bounded_by_what_varies(pairs: int, rank: int, kept: int) -> None:
    found = fit("c2", GUESSED[:pairs], 2 * GUESSED[:pairs], rank)
    assert (found.in_proj.shape, found.out_proj.shape) == ((SIZE, kept), (kept, SIZE))
    assert np.isfinite(corrected(found, GUESSED)).all()


def test_directions_without_variance_are_left_out() -> None:
    flat = GUESSED.copy()
    flat[:, 3:] = 1.0
    assert fit("c2", flat, 2 * flat, rank=10).in_proj.shape == (SIZE, 3)


@pytest.mark.parametrize("kind", ["c0", "c1", "c2", "c1+c2"])
def test_pairs_that_are_not_finite_are_left_out(kind: Any) -> None:
    true = 0.5 * GUESSED + 1
    guessed = np.vstack([GUESSED, GUESSED[:2]])
    guessed[-2, 3], spoilt = np.nan, np.vstack([true, np.full((2, SIZE), np.inf)])
    for one, other in zip(fit(kind, guessed, spoilt, 2), fit(kind, GUESSED, true, 2), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["c0", "c1", "c2", "c1+c2"])
def test_without_pairs_nothing_changes(kind: Any) -> None:
    for nothing in (np.zeros((0, SIZE)), np.full((3, SIZE), np.nan)):
        np.testing.assert_array_equal(corrected(fit(kind, nothing, nothing, 4), GUESSED), np.float32(GUESSED))


def test_coefficients_that_are_not_finite_change_nothing() -> None:
    found = fit("c1", np.ones((4, SIZE)), np.full((4, SIZE), 1e39), rank=0)  # beyond float32
    np.testing.assert_array_equal(corrected(found, GUESSED), np.float32(GUESSED))


def test_pairs_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[pairs, hidden\]"):
        fit("c1", GUESSED, GUESSED[:, 1:], 1)


@pytest.mark.parametrize("kind", ["c0", "c1", "c2", "c1+c2"])
def test_a_blend_goes_from_nothing_to_all(kind: Any) -> None:
    found = fit(kind, GUESSED, 0.5 * GUESSED[:, ::-1] + 1, 5)
    np.testing.assert_allclose(corrected(found.blended(0), GUESSED), GUESSED, atol=1e-5)
    np.testing.assert_allclose(corrected(found.blended(1), GUESSED), corrected(found, GUESSED), atol=1e-5)
    half = corrected(found.blended(0.5), GUESSED)
    assert 0 < np.abs(half - GUESSED).mean() < np.abs(corrected(found, GUESSED) - GUESSED).mean()


def test_each_depth_has_its_own_and_there_are_no_others() -> None:
    both = Corrector([identity(SIZE), identity(SIZE)._replace(bias=np.ones(1, np.float32))], account())
    hidden = mx.zeros((2, 1, SIZE))
    assert both(hidden, 1).tolist() == hidden.tolist()
    assert both(hidden, 2).tolist() == (hidden + 1).tolist()
    for depth in (0, 3):
        with pytest.raises(ValueError, match=f"depth {depth} is not one of the corrector's 1 to 2"):
            both(hidden, depth)


def test_hidden_states_keep_their_type() -> None:
    corrector = Corrector([fit("c1+c2", GUESSED, 2 * GUESSED, 2)], account())
    assert corrector(mx.zeros((1, SIZE), dtype=mx.bfloat16), 1).dtype == mx.bfloat16


def test_it_pays_if_more_drafts_are_accepted() -> None:
    assert accepted_drafts((0.5, 0.4)) == pytest.approx(0.5 + 0.2)
    assert Corrector([], account()).pays
    assert not Corrector([], account(after=(0.5, 0.4))).pays
    assert not Corrector([], account(after=(0.4, 0.5))).pays


@pytest.mark.parametrize("kind", ["c0", "c1", "c2", "c1+c2"])
def test_a_file_gives_back_what_was_saved(kind: Any, tmp_path: Path) -> None:
    corrections = [fit(kind, GUESSED, 0.5 * GUESSED[:, ::-1] + depth, 5) for depth in (1, 2)]
    told = account(kind=kind, rank=5, blend=0.5)
    save_corrector(Corrector(corrections, told), tmp_path / "corrector.safetensors")
    again = load_corrector(tmp_path / "corrector.safetensors")
    assert (again.account, again.depths) == (told, 2)
    for depth in (1, 2):
        hidden = mx.array(GUESSED.astype(np.float32))
        assert mx.array_equal(again(hidden, depth), Corrector(corrections, told)(hidden, depth)).item()
    assert [path.name for path in tmp_path.iterdir()] == ["corrector.safetensors"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        save_corrector(Corrector([identity(SIZE)], account()), tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_another_model_is_refused_by_name() -> None:
    corrector = Corrector([identity(SIZE)], account())
    corrector.check(SIZE, "post")
    with pytest.raises(CorrectorError, match="24 channels, the model's have 64"):
        corrector.check(64, "post")
    with pytest.raises(CorrectorError, match="post-norm hidden states, the head takes pre-norm"):
        corrector.check(SIZE, "pre")


def write(path: Path, arrays: dict[str, mx.array], told: str) -> None:
    mx.save_safetensors(str(path), arrays, {"pomona.corrector": told})


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "corrector.safetensors"
    whole = json.dumps({"kind": "c1", "hidden": "post", "size": 2, "rank": 0, "blend": 1, "before": [], "after": []})
    scale, bias = mx.ones(2), mx.zeros(2)
    write(path, {"1.scale": scale, "1.bias": bias}, whole)
    assert load_corrector(path).depths == 1
    write(path, {"1.scale": scale, "1.bias": bias}, whole.replace("}", ', "format": 9}'))
    with pytest.raises(CorrectorError, match="format 9, this version reads 1"):
        load_corrector(path)
    for arrays, told in (
        ({"1.scale": scale, "1.bias": bias}, "{}"),
        ({"1.scale": scale, "1.bias": bias}, "nonsense"),
        ({"1.scale": mx.ones(3), "1.bias": mx.zeros(3)}, whole),
        ({"1.scale": mx.array([1, mx.nan]), "1.bias": bias}, whole),
        ({"1.in_proj": mx.ones((2, 3)), "1.out_proj": mx.ones((2, 2))}, whole),
        ({"2.scale": scale, "2.bias": bias}, whole),
    ):
        write(path, arrays, told)
        with pytest.raises(CorrectorError, match="fit anew"):
            load_corrector(path)
    path.write_bytes(b"nonsense")
    for place in (path, tmp_path / "missing"):
        with pytest.raises(CorrectorError, match="is no corrector's file"):
            load_corrector(place)


def test_a_model_finds_the_one_that_was_fitted_for_its_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home.resolve({"POMONA_HOME": str(tmp_path / "home")})
    folders = [build_tiny_model(tmp_path / name, seed=seed) for name, seed in (("one", 1), ("same", 1), ("other", 2))]
    assert find_corrector(folders[0], home) is None
    save_corrector(Corrector([identity(SIZE)], account()), corrector_path(folders[0], home))
    found = [find_corrector(folder, home) for folder in folders]
    assert [each and each.account for each in found] == [account(), account(), None]
    corrector_path(folders[0], home).write_bytes(b"nonsense")
    assert find_corrector(folders[0], home) is None
    assert "corrector-unusable model=one" in caplog.text
