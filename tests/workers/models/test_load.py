import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model, save_model
from safetensors.numpy import load_file, save_file

from pomona.workers.models.error import ModelError
from pomona.workers.models.load import load
from pomona.workers.models.settings import DEFAULT_CONTEXT, context_length, eos_token_ids
from tests.support.tiny_model import FAMILIES, build_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "tiny")


def narrow(folder: Path) -> None:
    weights = mx.load(str(folder / "model.safetensors"))
    mx.save_safetensors(
        str(folder / "model.safetensors"), {name: value.astype(mx.bfloat16) for name, value in weights.items()}
    )


def dtypes(model: object) -> set[mx.Dtype]:
    return {value.dtype for _, value in tree_flatten(model.parameters())}  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_and_computes(tmp_path: Path, family: str) -> None:
    model, tokenizer = load(build_tiny_model(tmp_path / family, family))
    logits = model(mx.array([tokenizer.encode("the orchard")]))
    assert logits.shape[-1] == 320
    assert mx.all(mx.isfinite(logits)).item()
    assert 1.0 < mx.std(logits).item() < 10.0


def test_a_cpu_takes_float32_and_other_policies_what_they_say(model: Path) -> None:
    narrow(model)
    own = mx.float32 if mx.default_device() == mx.cpu else mx.bfloat16
    assert dtypes(load(model)[0]) == {own}
    assert dtypes(load(model, dtype="keep")[0]) == {mx.bfloat16}
    assert dtypes(load(model, dtype="float16")[0]) == {mx.float16}
    assert dtypes(load(model, dtype="float32")[0]) == {mx.float32}


def test_quantised_weights_stay_packed(model: Path, tmp_path: Path) -> None:
    loaded, _ = load(model)
    config = json.loads((model / "config.json").read_text())
    quantised, config = quantize_model(loaded, config, 32, 4)
    save_model(model, quantised)
    (model / "config.json").write_text(json.dumps(config))
    assert dtypes(load(model, dtype="float32")[0]) == {mx.uint32, mx.float32}


def test_all_ends_of_sequence_count_together(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "tiny", eos=[7])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 5}))
    assert eos_token_ids(folder) == {5, 7}
    assert load(folder)[1].eos_token_ids == {2, 5, 7}


def test_without_any_configured_end_the_tokenizers_own_counts(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "tiny", config={"eos_token_id": None})
    (folder / "generation_config.json").unlink()
    assert eos_token_ids(folder) == frozenset()
    assert load(folder)[1].eos_token_ids == {2}


def test_the_context_is_the_configurations(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "tiny", context=777)
    assert context_length(folder) == 777
    (folder / "config.json").write_text('{"text_config": {"max_position_embeddings": 99}}')
    assert context_length(folder) == 99
    (folder / "config.json").write_text("{}")
    assert context_length(folder) == DEFAULT_CONTEXT


def test_weights_that_do_not_fit_the_configuration_are_one_line(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, model / "model.safetensors")
    with pytest.raises(ModelError, match=r"tiny cannot be loaded \(.*its weights do not fit") as caught:
        load(model)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_is_no_tokenizer_is_one_line(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(ModelError, match=r"the tokenizer of .*tiny cannot be loaded") as caught:
        load(model)
    assert "\n" not in str(caught.value)


def test_only_loading_imports_mlx() -> None:
    code = (
        "import sys\n"
        "import pomona.home, pomona.workers.models.library, pomona.workers.models.fingerprint\n"
        "import pomona.workers.models.load\n"
        "from pomona.workers.models.check import architectures\n"
        "architectures()\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] in ('mlx', 'mlx_lm', 'transformers')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_tiny_model_is_the_same_every_time(model: Path, tmp_path: Path) -> None:
    again = build_tiny_model(tmp_path / "again")
    for file in model.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes(), file.name
