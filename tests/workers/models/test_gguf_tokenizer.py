from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import pytest
from tokenizers import pre_tokenizers

from pomona.workers.models.error import ModelError
from pomona.workers.models.gguf_config import end_ids
from pomona.workers.models.gguf_file import GgufFile
from pomona.workers.models.gguf_tokenizer import implied_merges, tokenizer_config_from, tokenizer_from

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
Vocabulary = Sequence[tuple[str, int]]
Write = Callable[..., GgufFile]

BYTES = [(f"<0x{value:02X}>", BYTE) for value in range(256)]
ALPHABET = [(letter, NORMAL) for letter in sorted(pre_tokenizers.ByteLevel.alphabet())]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """Writes a GGUF file with a tokenizer alone."""

    def write(
        model: str,
        vocabulary: Vocabulary,
        *,
        architecture: str = "llama",
        pre: str = "default",
        merges: Sequence[str] = (),
        scores: Sequence[float] = (),
        bos: int | None = None,
        eos: int | None = None,
        add_bos: bool | None = None,
        space_prefix: bool | None = None,
    ) -> GgufFile:
        writer = gguf.GGUFWriter(tmp_path / "tokenizer.gguf", architecture)
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([token for token, _ in vocabulary])
        writer.add_token_types([kind for _, kind in vocabulary])
        if merges:
            writer.add_token_merges(merges)
        if scores:
            writer.add_token_scores(scores)
        if bos is not None:
            writer.add_bos_token_id(bos)
        if eos is not None:
            writer.add_eos_token_id(eos)
        if add_bos is not None:
            writer.add_add_bos_token(add_bos)
        if space_prefix is not None:
            writer.add_add_space_prefix(space_prefix)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return GgufFile(tmp_path / "tokenizer.gguf")

    return write


def test_control_tokens_are_special_and_user_defined_ones_only_whole(written: Write) -> None:
    vocabulary = [*ALPHABET, ("<|end|>", CONTROL), ("<think>", USER_DEFINED), ("<plain>", NORMAL)]
    tokenizer = tokenizer_from(written("gpt2", vocabulary))
    ids = tokenizer.encode("a<think>b<|end|>").ids
    assert [tokenizer.id_to_token(token) for token in ids] == ["a", "<think>", "b", "<|end|>"]
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<think>b<|end|>"
    assert len(tokenizer.encode("<plain>").ids) == len("<plain>")


def test_llama3_takes_a_whole_word_before_its_merges(written: Write) -> None:
    vocabulary = [*ALPHABET, ("ab", NORMAL), ("cd", NORMAL), ("abcd", NORMAL)]
    for pre, pieces in (("llama-bpe", ["abcd"]), ("default", ["ab", "c", "d"])):
        assert tokenizer_from(written("gpt2", vocabulary, pre=pre, merges=["a b"])).encode("abcd").tokens == pieces


def test_qwen2_composes_characters_first(written: Write) -> None:
    composed = tokenizer_from(written("gpt2", ALPHABET, pre="qwen2"))
    assert composed.encode("e\u0301").ids == composed.encode("\u00e9").ids
    plain = tokenizer_from(written("gpt2", ALPHABET, pre="llama-bpe"))
    assert plain.encode("e\u0301").ids != plain.encode("\u00e9").ids


def test_a_start_token_is_added_where_the_metadata_says_so(written: Write) -> None:
    vocabulary = [("<s>", CONTROL), *ALPHABET]
    for add, first in ((True, "<s>"), (False, "a"), (None, "a")):
        assert tokenizer_from(written("gpt2", vocabulary, bos=0, add_bos=add)).encode("a").tokens[0] == first
    tokenizer = tokenizer_from(written("gpt2", vocabulary, bos=0, add_bos=True))
    assert tokenizer.encode("a", add_special_tokens=False).tokens == ["a"]


def test_sentencepiece_adds_a_space_and_a_start_token_unless_told(written: Write) -> None:
    vocabulary = [("<unk>", 2), ("<s>", CONTROL), *BYTES, ("\u2581", NORMAL), ("a", NORMAL), ("\u2581a", NORMAL)]
    scores = [0.0] * len(vocabulary)
    default = tokenizer_from(written("llama", vocabulary, scores=scores, bos=1))
    assert default.encode("a a").tokens == ["<s>", "\u2581a", "\u2581a"]
    assert default.decode(default.encode("a a é").ids) == "a a é"
    bare = tokenizer_from(written("llama", vocabulary, scores=scores, bos=1, add_bos=False, space_prefix=False))
    assert bare.encode("a a").tokens == ["a", "\u2581a"]
    assert bare.decode(bare.encode(" a é 🍎").ids) == " a é 🍎"


def test_sentencepiece_merges_by_score(written: Write) -> None:
    letters = [("a", NORMAL), ("b", NORMAL), ("c", NORMAL), ("ab", NORMAL), ("bc", NORMAL)]
    for better, pieces in (("ab", ["ab", "c"]), ("bc", ["a", "bc"])):
        scores = [*[0.0] * 256, *(1.0 if token == better else 0.5 for token, _ in letters)]
        file = written("llama", [*BYTES, *letters], scores=scores, space_prefix=False)
        assert tokenizer_from(file).encode("abc").tokens == pieces


def test_gemma_merges_by_position_and_spells_runs_of_spaces_anew(written: Write) -> None:
    letters = [("\u2581", NORMAL), ("a", NORMAL), ("b", NORMAL), ("c", NORMAL), ("ab", NORMAL), ("bc", NORMAL)]
    vocabulary = [*BYTES, *letters, ("  ", USER_DEFINED)]
    scores = [*[0.0] * 260, 0.1, 0.9, 0.0]
    tokenizer = tokenizer_from(written("llama", vocabulary, architecture="gemma3", scores=scores))
    assert tokenizer.encode("abc").tokens == ["ab", "c"]
    ids = tokenizer.encode("a  b").ids
    assert [tokenizer.id_to_token(token) for token in ids] == ["a", "\u2581\u2581", "b"]
    assert tokenizer.decode(ids) == "a  b"
    assert tokenizer.get_vocab_size() == len(vocabulary)


def test_a_token_that_is_listed_twice_is_refused(written: Write) -> None:
    with pytest.raises(ModelError, match="lists a token twice"):
        tokenizer_from(written("gpt2", [*ALPHABET, ("a", NORMAL)]))


def test_a_file_without_a_tokenizer_is_refused(written: Write) -> None:
    with pytest.raises(ModelError, match="has no tokenizer"):
        tokenizer_from(written("gpt2", []))


def test_the_configuration_names_the_special_tokens_it_knows(written: Write) -> None:
    assert tokenizer_config_from(written("gpt2", [("<s>", CONTROL), *ALPHABET], bos=0), 512) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "bos_token": "<s>",
    }


def test_answers_end_at_what_the_metadata_names_and_at_known_control_tokens(written: Write) -> None:
    vocabulary = [("</s>", NORMAL), ("<|im_end|>", CONTROL), ("<|eot_id|>", NORMAL), *ALPHABET]
    assert end_ids(written("gpt2", vocabulary, eos=0)) == [0, 1]
    assert end_ids(written("gpt2", vocabulary)) == [1]


def test_implied_merges_put_better_tokens_first() -> None:
    vocabulary = {"a": 0, "b": 1, "ab": 2, "abb": 3, "bb": 4}
    assert implied_merges(vocabulary, [0.0, 0.0, 1.0, 3.0, 2.0]) == [("a", "bb"), ("ab", "b"), ("b", "b"), ("a", "b")]
