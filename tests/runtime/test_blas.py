from pathlib import Path

import pytest

from pomona.runtime import blas
from pomona.runtime.blas import FastBlas

MKL = FastBlas("mkl", "/env/lib/libmkl_rt.so.3")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    return tmp_path


def test_mkl_of_the_environment_is_taken_in_its_newest_version(prefix: Path) -> None:
    for version in ("2", "10", "9"):
        (prefix / "lib" / f"libmkl_rt.so.{version}").touch()
    assert blas.find(prefix, "linux") == FastBlas("mkl", str(prefix / "lib" / "libmkl_rt.so.10"))


def test_without_mkl_it_is_openblas_or_nothing(prefix: Path) -> None:
    found = blas.find(prefix, "linux")
    assert found is None or found.name == "openblas"


def test_a_mac_needs_nothing(prefix: Path) -> None:
    (prefix / "lib" / "libmkl_rt.so.2").touch()
    assert blas.find(prefix, "darwin") is None
    assert blas.environment(None) == {}


def test_what_the_user_preloads_stays() -> None:
    assert blas.environment(MKL, {}) == {"LD_PRELOAD": MKL.library}
    assert blas.environment(MKL, {"LD_PRELOAD": "/lib/a.so /lib/b.so"}) == {
        "LD_PRELOAD": f"{MKL.library}:/lib/a.so /lib/b.so"
    }


def test_a_model_of_short_products_gets_one_thread_unless_the_user_has_a_say() -> None:
    loaded = {"LD_PRELOAD": MKL.library}
    assert blas.environment(MKL, loaded, weights=1 << 20) == {"MKL_NUM_THREADS": "1"}
    assert blas.environment(FastBlas("openblas", MKL.library), loaded, weights=1) == {"OPENBLAS_NUM_THREADS": "1"}
    assert blas.environment(MKL, {}, weights=1) == {"LD_PRELOAD": MKL.library, "MKL_NUM_THREADS": "1"}
    assert blas.environment(MKL, loaded, weights=1 << 30) == {}
    assert blas.environment(MKL, loaded | {"MKL_NUM_THREADS": "2"}, weights=1) == {}
    assert blas.environment(MKL, loaded | {"OMP_NUM_THREADS": "2"}, weights=1) == {}


@pytest.mark.parametrize("preloaded", [MKL.library, f"/lib/a.so:{MKL.library}", f"{MKL.library} /lib/a.so"])
def test_what_is_preloaded_already_is_not_preloaded_twice(preloaded: str) -> None:
    assert blas.environment(MKL, {"LD_PRELOAD": preloaded}) == {}
