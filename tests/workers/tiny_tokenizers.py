"""Tokenisers of the kinds that models come with, built on the spot."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support.tiny_model import CORPUS, train_tokenizer

BLANK = "▁"
PIECES = ("a", "b", "the", "apple", BLANK, BLANK + "a", BLANK + "the", BLANK + BLANK, "\n", "果")


def fast(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def byte_level() -> Tokenizer:
    tokenizer = train_tokenizer(320)
    tokenizer.add_tokens([AddedToken("<extra token>", special=False), AddedToken("É!", special=False)])
    return tokenizer


def pieces_and_bytes() -> dict[str, int]:
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    return {name: index for index, name in enumerate(names)}


def sentencepiece(*, prepend: bool) -> Tokenizer:
    """As Llama 2 (a blank is put in front and stripped again) or as Gemma (neither)."""
    merges = [("a", "p"), ("ap", "p")]
    vocabulary = pieces_and_bytes() | {"t": 300, "h": 301, "e": 302, "p": 303, "ap": 304, "app": 305}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend(BLANK)] if prepend else []), normalizers.Replace(" ", BLANK)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(BLANK, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(content=" ", left=1)] if prepend else []),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def metaspace() -> Tokenizer:
    """As T5 or XLNet: whole pieces, blanks as a marker that the decoder turns back."""
    characters = sorted({character for text in CORPUS for character in text} - {" "})
    scores = [("<unk>", 0.0), ("</s>", 0.0), *((piece, -1.0) for piece in PIECES)]
    scores += [(character, -5.0) for character in characters if character not in PIECES]
    tokenizer = Tokenizer(models.Unigram(scores, 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    return tokenizer
