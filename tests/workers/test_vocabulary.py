import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from pomona.workers.text import TextStream
from pomona.workers.vocabulary import Vocabulary
from tests.support.tiny_model import CORPUS, SPECIALS
from tests.workers.tiny_tokenizers import BLANK, byte_level, fast, metaspace, pieces_and_bytes, sentencepiece

TEXTS = st.one_of(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=30),
    st.text(alphabet=" aé🍎👩‍🌾果園\n\t", max_size=30),
    st.sampled_from(CORPUS),
)


def text_of(vocabulary: Vocabulary, tokens: list[int]) -> str:
    """Token by token, as a row does it."""
    stream = TextStream(strip_first_space=vocabulary.strips_first_space)
    return "".join([*(stream.push(vocabulary.bytes_of(token)).text for token in tokens), stream.flush().text])


BYTE_LEVEL = byte_level()
LLAMA = sentencepiece(prepend=True)
GEMMA = sentencepiece(prepend=False)
METASPACE = metaspace()


@settings(deadline=None)
@given(TEXTS)
def test_byte_level_tokens_join_to_the_text(text: str) -> None:
    vocabulary = Vocabulary(fast(BYTE_LEVEL))
    tokens = BYTE_LEVEL.encode(text).ids
    assert vocabulary.join(tokens) == text.encode()
    assert text_of(vocabulary, tokens) == BYTE_LEVEL.decode(tokens) == text


@settings(deadline=None)
@given(TEXTS)
def test_sentencepiece_tokens_join_to_the_text_with_bytes_for_what_is_unknown(text: str) -> None:
    for tokenizer, strips in ((LLAMA, True), (GEMMA, False)):
        vocabulary = Vocabulary(fast(tokenizer))
        tokens = tokenizer.encode(text).ids
        assert vocabulary.strips_first_space is strips
        assert text_of(vocabulary, tokens) == tokenizer.decode(tokens)
        if BLANK not in text:
            assert text_of(vocabulary, tokens) == text


@settings(deadline=None)
@given(st.sampled_from(CORPUS[:2]), st.integers(0, 40))
def test_metaspace_tokens_join_to_the_text(text: str, start: int) -> None:
    vocabulary = Vocabulary(fast(METASPACE))
    tokens = METASPACE.encode(text[start:]).ids
    assert vocabulary.strips_first_space
    assert text_of(vocabulary, tokens) == METASPACE.decode(tokens)


def test_a_character_in_several_tokens_is_whole_in_the_end() -> None:
    vocabulary = Vocabulary(fast(LLAMA))
    tokens = LLAMA.encode("🍎").ids[1:]
    assert [vocabulary.bytes_of(token) for token in tokens] == [bytes([byte]) for byte in "🍎".encode()]


def test_special_tokens_add_nothing_but_have_a_name() -> None:
    vocabulary = Vocabulary(fast(BYTE_LEVEL))
    assert vocabulary.special == {0, 1, 2}
    for token, name in enumerate(SPECIALS):
        assert vocabulary.bytes_of(token) == b""
        assert vocabulary.name_of(token) == name.encode()


def test_added_tokens_that_are_not_special_are_text() -> None:
    vocabulary = Vocabulary(fast(BYTE_LEVEL))
    for text in ("<extra token>", "É!"):
        (token,) = BYTE_LEVEL.encode(text).ids
        assert vocabulary.bytes_of(token) == vocabulary.name_of(token) == text.encode()


def test_names_of_plain_tokens_are_their_bytes_and_ids_beyond_the_vocabulary_are_empty() -> None:
    vocabulary = Vocabulary(fast(BYTE_LEVEL))
    assert len(vocabulary) == BYTE_LEVEL.get_vocab_size()
    (token,) = BYTE_LEVEL.encode("A").ids
    assert vocabulary.name_of(token) == b"A"
    assert vocabulary.bytes_of(len(vocabulary) + 5) == vocabulary.name_of(len(vocabulary) + 5) == b""


def test_a_token_that_only_looks_like_a_byte_is_text() -> None:
    tokenizer = Tokenizer(models.BPE(pieces_and_bytes() | {"<0xZZ>": 400}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert Vocabulary(fast(tokenizer)).bytes_of(400) == tokenizer.decode([400]).encode() == b"<0xZZ>"


def test_byte_names_are_text_where_the_decoder_knows_no_bytes() -> None:
    tokenizer = Tokenizer(models.BPE(pieces_and_bytes(), []))
    tokenizer.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.Fuse()])
    token = pieces_and_bytes()["<0x41>"]
    assert Vocabulary(fast(tokenizer)).bytes_of(token) == tokenizer.decode([token]).encode() == b"<0x41>"


def test_a_byte_level_token_outside_the_alphabet_is_text() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "果 園": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    assert Vocabulary(fast(tokenizer)).bytes_of(1).decode() == tokenizer.decode([1]) == "果 園"


def test_a_vocabulary_without_a_decoder_is_plain_text() -> None:
    tokenizer = Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(" "), "removed")
    assert Vocabulary(fast(tokenizer)).join([0, 1]) == b"onetwo"


def test_a_slow_tokeniser_is_refused() -> None:
    with pytest.raises(ValueError, match=r"object has no fast backend \(tokenizer.json is missing\)"):
        Vocabulary(object())
