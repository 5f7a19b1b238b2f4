import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from pomona.runtime.wire import replace
from pomona.workers.models.error import ModelError
from pomona.workers.models.fingerprint import weights_digest
from pomona.workers.models.gguf_config import llama3_factors
from pomona.workers.models.gguf_import import file_sha256, import_gguf
from pomona.workers.models.gguf_weights import hf_name, to_bytes
from pomona.workers.models.load import load
from pomona.workers.models.record import NAME, read_record
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_model import build_tiny_model

LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
GEMMA = {"attention.sliding_window": 16, "rope.freq_base_swa": 10000.0}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "source")


@pytest.fixture
def llama_gguf(llama: Path, tmp_path: Path) -> Path:
    return write_gguf(llama, tmp_path / "tiny.gguf")


def logits(folder: Path) -> np.ndarray:
    model, _ = load_model(folder)
    return np.array(model(mx.array([[5, 80, 17, 200, 4, 99, 31]])))


@pytest.mark.parametrize(
    ("family", "architecture", "extra", "config"),
    [
        ("llama", "llama", {}, {}),
        ("llama", "llama", {}, {"tie_word_embeddings": True}),
        ("llama", "llama", {}, {"rope_theta": 50.0}),
        ("llama", "llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, LINEAR),
        ("qwen3", "qwen3", {}, {}),
        ("gemma3_text", "gemma3", GEMMA, {"sliding_window_pattern": 6, "num_hidden_layers": 6}),
    ],
)
def test_an_imported_model_computes_what_the_original_does(
    tmp_path: Path, family: str, architecture: str, extra: dict[str, int | float | str], config: dict[str, object]
) -> None:
    source = build_tiny_model(tmp_path / "source", family, config=config)
    file = write_gguf(source, tmp_path / "tiny.gguf", architecture=architecture, extra=extra)
    imported = import_gguf(file, tmp_path / "imported", dtype="float32")
    np.testing.assert_allclose(logits(imported), logits(source), atol=1e-5)
    assert load_file(imported / "model.safetensors").keys() == load_file(source / "model.safetensors").keys()


def test_qwen2_keeps_its_biases_and_its_row_order(tmp_path: Path) -> None:
    source = build_tiny_model(tmp_path / "source", config={"attention_bias": True})
    file = write_gguf(source, tmp_path / "tiny.gguf", architecture="qwen2")
    imported = load_file(import_gguf(file, tmp_path / "imported", dtype="float32") / "model.safetensors")
    original = load_file(source / "model.safetensors")
    for name in ("model.layers.1.self_attn.q_proj.bias", "model.layers.1.self_attn.k_proj.weight"):
        np.testing.assert_array_equal(imported[name], original[name])


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1])
def test_quantised_tensors_become_the_values_they_stand_for(
    llama: Path, tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    file = write_gguf(llama, tmp_path / "tiny.gguf", quantization=kind)
    imported = load_file(import_gguf(file, tmp_path / "imported", dtype="float32") / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    original = load_file(llama / "model.safetensors")[name]
    np.testing.assert_array_equal(imported[name], gguf.quants.dequantize(gguf.quants.quantize(original, kind), kind))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_imports_round_to_the_nearest_value(llama_gguf: Path, llama: Path, tmp_path: Path, dtype: str) -> None:
    imported = mx.load(str(import_gguf(llama_gguf, tmp_path / "imported", dtype=dtype) / "model.safetensors"))
    for name, value in mx.load(str(llama / "model.safetensors")).items():
        assert mx.array_equal(imported[name], value.astype(getattr(mx, dtype))).item(), name


def test_bfloat16_ties_go_to_even() -> None:
    values = np.array([1.0 + 2**-8, 1.0 + 3 * 2**-8], dtype=np.float32)
    assert np.frombuffer(to_bytes(values, "bfloat16"), "<u2").tolist() == [0x3F80, 0x3F82]


@pytest.mark.parametrize("architecture", ["LLAMA", "QWEN2", "QWEN3", "GEMMA3"])
def test_names_agree_with_the_gguf_packages_own_map(architecture: str) -> None:
    kind = getattr(gguf.MODEL_ARCH, architecture)
    known = gguf.get_tensor_name_map(kind, 2)
    skipped = ("rope_freqs", "attn_rot_embd", "_exp", "_inp", "sinks", "altup", "laurel", "per_layer", "inp_gate")
    for tensor in gguf.MODEL_TENSORS[kind]:
        name = gguf.TENSOR_NAMES[tensor].format(bid=1)
        if any(part in name for part in (*skipped, "cls", "dense")):
            continue
        assert known.get_name(hf_name(architecture.lower(), f"{name}.weight"), (".weight",)) == f"{name}.weight"


def test_the_tokenizer_and_the_template_come_along(llama: Path, llama_gguf: Path, tmp_path: Path) -> None:
    imported = import_gguf(llama_gguf, tmp_path / "imported")
    original = Tokenizer.from_file(str(llama / "tokenizer.json"))
    _, tokenizer = load(imported)
    for text in ("<|im_start|>user\nThe orchard, 12345!<|im_end|>", "果園 👩‍🌾🏽 é\u0301 \t\n", "¿Dónde?  two  spaces"):
        assert tokenizer.encode(text) == original.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert prompt[0] == 1
    assert tokenizer.decode(prompt) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_control_token_that_ends_a_turn_ends_answers_too(llama_gguf: Path, tmp_path: Path) -> None:
    imported = import_gguf(llama_gguf, tmp_path / "imported")
    assert json.loads((imported / "generation_config.json").read_text())["eos_token_id"] == [0, 2]
    assert load(imported)[1].eos_token_ids == {0, 2}


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "in 2024", ["in", "Ġ2024"]),
        ("smollm", "in 2024", ["in", "Ġ", "2", "0", "2", "4"]),
        ("llama-bpe", "in 20245", ["in", "Ġ", "202", "45"]),
        ("qwen2", "in 2024", ["in", "Ġ", "2", "0", "2", "4"]),
    ],
)
def test_text_is_cut_as_the_named_rule_says(
    llama: Path, tmp_path: Path, pre: str, text: str, pieces: list[str]
) -> None:
    imported = import_gguf(write_gguf(llama, tmp_path / "tiny.gguf", pre=pre), tmp_path / "imported")
    cut = Tokenizer.from_file(str(imported / "tokenizer.json")).pre_tokenizer
    assert cut is not None
    assert [piece for piece, _ in cut.pre_tokenize_str(text)] == pieces


def test_llama3_scaling_is_recovered_from_its_factors(llama: Path, tmp_path: Path) -> None:
    scaling = {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors = llama3_factors(scaling, 10000.0, 8)
    file = write_gguf(llama, tmp_path / "tiny.gguf", rope_factors=factors)
    imported = import_gguf(file, tmp_path / "imported")
    config = json.loads((imported / "config.json").read_text())
    assert config["rope_scaling"] == {"rope_type": "llama3", **scaling}
    model, _ = load_model(imported)
    inverse = np.array(model.layers[0].self_attn.rope._freqs)
    np.testing.assert_allclose(inverse, 10000.0 ** (np.arange(8) / 8) * factors, rtol=1e-5)


def test_rope_factors_of_another_law_are_refused(llama: Path, tmp_path: Path) -> None:
    file = write_gguf(llama, tmp_path / "tiny.gguf", rope_factors=np.linspace(1.0, 3.0, 8))
    with pytest.raises(ModelError, match="rope factors of an unknown law"):
        import_gguf(file, tmp_path / "imported")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba'"),
        ({"pre": "tekken"}, "the rule 'tekken'"),
        ({"tokenizer": "bert"}, "kind 'bert'"),
        ({"extra": {"expert_count": 8}}, "mixture of experts"),
        ({"extra": {"rope.scaling.type": "yarn"}}, "by 'yarn'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    llama: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    file = write_gguf(llama, tmp_path / "tiny.gguf", **options)
    with pytest.raises(ModelError, match=message):
        import_gguf(file, tmp_path / "library" / "imported")
    assert _entries(tmp_path / "library") == []


def test_a_file_that_is_cut_short_is_refused(llama_gguf: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.gguf"
    for size in (0, 3, 100, 20_000, llama_gguf.stat().st_size - 1):
        half.write_bytes(llama_gguf.read_bytes()[:size])
        with pytest.raises(ModelError, match=r"half\.gguf is not a whole GGUF file"):
            import_gguf(half, tmp_path / "imported")
        assert not (tmp_path / "imported").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no file at .*absent\.gguf"):
        import_gguf(tmp_path / "absent.gguf", tmp_path / "imported")


def test_a_second_import_changes_nothing(llama_gguf: Path, tmp_path: Path) -> None:
    imported = import_gguf(llama_gguf, tmp_path / "imported")
    before = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in imported.iterdir()}
    import_gguf(llama_gguf, tmp_path / "imported")
    assert {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in imported.iterdir()} == before


def test_an_import_of_another_format_or_with_a_damaged_record_is_made_anew(llama_gguf: Path, tmp_path: Path) -> None:
    imported = import_gguf(llama_gguf, tmp_path / "imported")
    record = read_record(imported)
    assert record is not None
    for damage in (lambda: replace(record, format=0).write(imported), lambda: (imported / NAME).write_text("{")):
        damage()
        assert read_record(imported) is None
        import_gguf(llama_gguf, tmp_path / "imported")
        assert read_record(imported) is not None


def test_the_configuration_says_what_the_metadata_does(llama_gguf: Path, tmp_path: Path) -> None:
    imported = import_gguf(llama_gguf, tmp_path / "imported", dtype="float32")
    assert json.loads((imported / "config.json").read_text()) == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 2048,
        "vocab_size": 320,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": [0, 2],
        "attention_bias": False,
    }


def test_a_running_import_is_not_swept_away_by_another(llama_gguf: Path, tmp_path: Path) -> None:
    running = tmp_path / f".partial-{os.getpid()}-running"
    running.mkdir()
    import_gguf(llama_gguf, tmp_path / "imported")
    assert running.exists()


def test_a_folder_of_something_else_is_never_overwritten(llama_gguf: Path, llama: Path) -> None:
    with pytest.raises(ModelError, match=r"exists and is not an import of tiny\.gguf"):
        import_gguf(llama_gguf, llama)
    assert not (llama / NAME).exists()


def test_an_interrupted_import_leaves_nothing(llama_gguf: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int, text: str) -> None:
        if text == "converting weights" and done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_gguf(llama_gguf, tmp_path / "library" / "imported", progress=interrupt)
    assert _entries(tmp_path / "library") == []


def test_what_a_killed_import_left_is_hidden_and_swept_by_the_next(llama_gguf: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from pomona.workers.models.gguf_import import import_gguf\n"
        "def die(done, total, text):\n"
        "    if text == 'converting weights': os.kill(os.getpid(), signal.SIGKILL)\n"
        "import_gguf(Path(sys.argv[1]), Path(sys.argv[2]), progress=die)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, llama_gguf, library / "imported"], timeout=120)
    assert killed.returncode < 0
    assert [name.startswith(".partial-") for name in _entries(library)] == [True]
    import_gguf(llama_gguf, library / "imported")
    assert _entries(library) == ["imported"]


def test_the_record_tells_the_source_and_the_digest(llama_gguf: Path, tmp_path: Path) -> None:
    imported = import_gguf(llama_gguf, tmp_path / "imported", dtype="float16")
    record = read_record(imported)
    assert record is not None
    assert (record.source, record.dtype) == (str(llama_gguf), "float16")
    assert record.source_sha256 == file_sha256(llama_gguf)
    (imported / NAME).unlink()
    assert record.weights_digest == weights_digest(imported, tmp_path / "state").hex()


def test_progress_is_told_in_order_and_to_the_end(llama_gguf: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    import_gguf(llama_gguf, tmp_path / "imported", progress=lambda *told: seen.append(told))
    weights = [(done, total) for done, total, text in seen if text == "converting weights"]
    assert weights == sorted(weights)
    assert weights[-1][0] == weights[-1][1] > 0


def _entries(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []
