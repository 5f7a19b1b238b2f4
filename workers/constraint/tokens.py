"""A model's tokens as the grammar engine sees them: the bytes that they add to the text, and those that end it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer, TokenizerWrapper

from pomona.workers.vocabulary import Vocabulary

Words = npt.NDArray[np.uint32]
"""One bit a token, bit `t % 32` of word `t // 32`."""


class Tokens:
    """Built once a worker, as it takes about a second; read-only from then on, so threads may share it.

    Special tokens, and every id of `eos`, add nothing to a text: no text lexeme of a grammar takes one.
    """

    def __init__(self, vocabulary: Vocabulary, eos: frozenset[int], encode: Callable[[str], Sequence[int]]) -> None:
        """`encode` gives the tokens of a text without any added around it. Raises ValueError without an `eos`."""
        if not eos:
            raise ValueError("the model names no end-of-sequence token")
        self.eos = eos
        self.size = max(len(vocabulary), max(eos) + 1)
        """Ids that the masks tell of; no id behind them is allowed."""
        self.ends = self.words(eos)
        known = [token for token in range(self.size) if vocabulary.name_of(token)]
        self.known = self.words(known) | self.ends
        """Ids that stand for something; padded vocabularies have others."""
        self.texts = self.known & ~self.ends
        self.special = vocabulary.special | eos
        """Tokens that are text of no grammar and no channel."""
        self.added = vocabulary.added
        lexicon = _Lexicon(vocabulary, eos, self.size, encode)
        self.pieces: list[bytes] = lexicon.tokens
        """The bytes of each id; a special one's are its name."""
        self.lexicon = LLTokenizer(TokenizerWrapper(lexicon), eos_token=sorted(eos))
        self.encode: Callable[[bytes], list[int]] = lexicon
        """The tokens of a text, special tokens never among them."""

    def words(self, tokens: Iterable[int]) -> Words:
        words = np.zeros(-(-self.size // 32), dtype=np.uint32)
        for token in tokens:
            words[token // 32] |= np.uint32(1 << token % 32)
        return words


def tokens_of(tokenizer: Any, vocabulary: Vocabulary) -> Tokens:
    """Of a Hugging Face tokeniser as mlx-lm loads it, which knows all ends. Raises ValueError if it has none."""

    def encode(text: str) -> Sequence[int]:
        return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    return Tokens(vocabulary, frozenset(tokenizer.eos_token_ids), encode)


class _Lexicon:
    """What `TokenizerWrapper` asks for."""

    bos_token_id = None

    def __init__(
        self, vocabulary: Vocabulary, eos: frozenset[int], size: int, encode: Callable[[str], Sequence[int]]
    ) -> None:
        self._vocabulary = vocabulary
        self._encode = encode
        self.eos_token_id = min(eos)
        specials = vocabulary.special | eos
        self.special_token_ids = sorted(specials)
        self.tokens = [
            vocabulary.name_of(token) or b"<%d>" % token if token in specials else vocabulary.bytes_of(token)
            for token in range(size)
        ]
        texts = ((token, text) for token, text in enumerate(self.tokens) if text and token not in specials)
        self._token_of = {text: token for token, text in texts}
        self._longest = max(map(len, self._token_of), default=0)

    def __call__(self, data: bytes | str) -> list[int]:
        """The model's own tokens of a text, if they are its bytes; where its tokeniser changes it, the longest ones."""
        text = data if isinstance(data, str) else data.decode(errors="replace")
        raw = text.encode() if isinstance(data, str) else data
        tokens = list(self._encode(text))
        return tokens if self._vocabulary.join(tokens) == raw else self._longest_first(raw)

    def _longest_first(self, raw: bytes) -> list[int]:
        tokens: list[int] = []
        place = 0
        while place < len(raw):
            for end in range(min(len(raw), place + self._longest), place, -1):
                token = self._token_of.get(raw[place:end])
                if token is not None:
                    tokens.append(token)
                    place = end
                    break
            else:
                return tokens  # a byte that no token has: what follows cannot be forced
        return tokens
