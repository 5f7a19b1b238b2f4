"""Token ids as the bytes that they stand for: the one table behind text, log-probabilities and channels."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNICODE_BYTES: dict[str, int] = {}


def _byte_level() -> dict[str, int]:
    """The GPT-2 alphabet: each byte as one printable character; the inverse of transformers' `bytes_to_unicode`."""
    if not _UNICODE_BYTES:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        _UNICODE_BYTES.update({character: byte for byte, character in bytes_to_unicode().items()})
    return _UNICODE_BYTES


def _decoders(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder.get("type") == "Sequence":
        return [inner for part in decoder["decoders"] for inner in _decoders(part)]
    return [decoder]


class Vocabulary:
    """The bytes of every token of a Hugging Face fast tokeniser.

    `bytes_of(token)` is empty for special tokens and for ids that the tokeniser does not know. Raises ValueError for a
    tokeniser without a fast backend.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(f"{type(tokenizer).__name__} has no fast backend (tokenizer.json is missing)")
        state = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {"type": "Fuse"}
        decoders = _decoders(state)
        kinds = {decoder["type"] for decoder in decoders}
        piece = self._byte_level_piece if "ByteLevel" in kinds else self._fallback_piece(decoders)
        self.strips_first_space = any(
            decoder["type"] == "Strip" and decoder.get("start", 0) > 0 and decoder.get("content") == " "
            for decoder in decoders
        ) or any(
            decoder["type"] == "Metaspace" and decoder.get("prepend_scheme", "always") != "never"
            for decoder in decoders
        )
        table: dict[int, bytes] = {token: piece(text) for text, token in backend.get_vocab().items()}
        self.special: frozenset[int] = frozenset(
            token for token, added in backend.get_added_tokens_decoder().items() if added.special
        )
        for token, added in backend.get_added_tokens_decoder().items():
            table[token] = b"" if added.special else str(added.content).encode()
        self._names = {
            token: str(added.content).encode() for token, added in backend.get_added_tokens_decoder().items()
        }
        self.added = frozenset(self._names)
        """Tokens that stand for their whole name wherever it occurs; special ones are among them."""
        self.newlines = frozenset(token for token, text in table.items() if text == b"\n")
        """Tokens that are a line's end and nothing else."""
        self._bytes = [table.get(token, b"") for token in range(max(table, default=-1) + 1)]

    def __len__(self) -> int:
        return len(self._bytes)

    def bytes_of(self, token: int) -> bytes:
        """What the token adds to the text."""
        return self._bytes[token] if token < len(self._bytes) else b""

    def name_of(self, token: int) -> bytes:
        """As `bytes_of`, but a special token's own name; for log-probabilities."""
        return self._names.get(token) or self.bytes_of(token)

    def join(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.bytes_of(token) for token in tokens)

    @staticmethod
    def _byte_level_piece(text: str) -> bytes:
        alphabet = _byte_level()
        try:
            return bytes(alphabet[character] for character in text)
        except KeyError:
            return text.encode()

    @staticmethod
    def _fallback_piece(decoders: list[dict[str, Any]]) -> Callable[[str], bytes]:
        """SentencePiece's way: a marker for blanks, and `<0xNN>` for bytes outside the vocabulary."""
        markers = [
            (decoder["pattern"]["String"], decoder["content"])
            for decoder in decoders
            if decoder["type"] == "Replace" and "String" in decoder.get("pattern", {})
        ]
        markers += [(decoder["replacement"], " ") for decoder in decoders if decoder["type"] == "Metaspace"]
        has_bytes = any(decoder["type"] == "ByteFallback" for decoder in decoders)

        def piece(text: str) -> bytes:
            if has_bytes and (byte := _BYTE.fullmatch(text)):
                return bytes.fromhex(byte[1])
            for marker, blank in markers:
                text = text.replace(marker, blank)
            return text.encode()

        return piece
