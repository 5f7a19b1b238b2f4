"""GGUF metadata -> `tokenizer.json` and `tokenizer_config.json`."""

from collections.abc import Callable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from pomona.workers.models.error import ModelError
from pomona.workers.models.gguf_config import CONTROL, Json
from pomona.workers.models.gguf_file import GgufFile

USER_DEFINED = 4
UNDERLINE = "\u2581"
"""What SentencePiece writes for a space."""

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    pieces = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama3() -> pre_tokenizers.PreTokenizer:
    return _split(LLAMA3_SPLIT)


def _qwen2() -> pre_tokenizers.PreTokenizer:
    return _split(QWEN2_SPLIT)


PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _digits,
    "starcoder": _digits,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
}
"""`tokenizer.ggml.pre` -> how text is cut before merges apply."""


def tokenizer_from(gguf: GgufFile) -> Tokenizer:
    """Raises ModelError for a tokenizer model or a pre-tokenizer that this import does not know."""
    tokens = gguf.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{gguf.path.name} has no tokenizer; use a complete GGUF file of the model")
    kind = gguf.get("tokenizer.ggml.model", str)
    if kind == "llama" and gguf.architecture.startswith("gemma"):  # Runs of spaces are spelled with spaces there.
        tokens = [token.replace(" ", UNDERLINE) if not token.strip(" ") else token for token in tokens]
    match kind:
        case "gpt2":
            tokenizer = _byte_level(gguf, tokens)
        case "llama":
            tokenizer = _sentencepiece(gguf, tokens)
        case _:
            raise ModelError(
                f"{gguf.path.name} has a tokenizer of kind {kind!r}, which this import does not know (gpt2, llama); "
                "use the model's Hugging Face folder"
            )
    _add_tokens(gguf, tokens, tokenizer)
    if tokenizer.get_vocab_size() != len(tokens):
        raise ModelError(f"{gguf.path.name} lists a token twice; use the model's Hugging Face folder")
    bos = gguf.token_id("bos")
    if bos is not None and gguf.get("tokenizer.ggml.add_bos_token", bool, kind == "llama"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", pair=f"{tokens[bos]} $A {tokens[bos]} $B", special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer


def tokenizer_config_from(gguf: GgufFile, context: int) -> dict[str, Json]:
    """The entries of tokenizer_config.json, the chat template among them if the file has one."""
    tokens = gguf.strings("tokenizer.ggml.tokens")
    config: dict[str, Json] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    for field, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = gguf.token_id(key)
        if token is not None:
            config[f"{field}_token"] = tokens[token]
    if gguf.has("tokenizer.chat_template"):
        config["chat_template"] = gguf.get("tokenizer.chat_template", str)
    return config


def _byte_level(gguf: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = gguf.get("tokenizer.ggml.pre", str, "default")
    if pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"{gguf.path.name} cuts text by the rule {pre!r}, which this import does not know "
            f"({', '.join(PRE_TOKENIZERS)}); use the model's Hugging Face folder"
        )
    make = PRE_TOKENIZERS[pre]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, _merges(gguf), ignore_merges=make is _llama3))
    if make is _qwen2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = make()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merges(gguf: GgufFile) -> list[tuple[str, str]]:
    merges = []
    for merge in gguf.strings("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    return merges


def _sentencepiece(gguf: GgufFile, tokens: list[str]) -> Tokenizer:
    """BPE in SentencePiece's manner: spaces are underlines, unknown characters are bytes."""
    gemma = gguf.architecture.startswith("gemma")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    scores = [float(score) for score in gguf.array("tokenizer.ggml.scores")]
    if gemma or len(scores) != len(tokens):  # Gemma's merges rank by position; its scores do not.
        scores = [-float(i) for i in range(len(tokens))]
    unknown = gguf.token_id("unknown")
    model = BPE(
        vocabulary,
        implied_merges(vocabulary, scores),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=tokens[unknown] if unknown is not None else None,
    )
    tokenizer = Tokenizer(model)
    steps: list[decoders.Decoder] = [decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse()]
    replace = normalizers.Replace(" ", UNDERLINE)
    if gguf.get("tokenizer.ggml.add_space_prefix", bool, not gemma):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(UNDERLINE), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = replace
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def implied_merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """All ways to make a token of two others, best token first: the merges that SentencePiece leaves unsaid."""
    ranked = []
    for token, i in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[i], left, right, token[:cut], token[cut:]))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _add_tokens(gguf: GgufFile, tokens: list[str], tokenizer: Tokenizer) -> None:
    """Makes control and user-defined tokens whole wherever they appear in a text."""
    typed = list(zip(tokens, gguf.array("tokenizer.ggml.token_type"), strict=False))
    special = [AddedToken(token, normalized=False) for token, kind in typed if kind == CONTROL]
    plain = [AddedToken(token, normalized=False) for token, kind in typed if kind == USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)
