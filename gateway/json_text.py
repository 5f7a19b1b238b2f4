"""JSON that arrives in pieces: where an object ends. Pure."""

import re

_NEXT = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class ObjectText:
    """Reads up to the brace that closes the first one. Brackets are counted, not paired: JSON it may still not be."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.whole = False

    def feed(self, text: str) -> str:
        """The part of `text` that belongs to the object, which the first text begins with."""
        place = 0
        while not self.whole:
            if self._escaped:
                if place == len(text):
                    return text
                self._escaped = False
                place += 1
            found = (_IN_STRING if self._in_string else _NEXT).search(text, place)
            if found is None:
                return text
            place = found.end()
            self._take(found.group())
        return text[:place]

    def _take(self, character: str) -> None:
        match character:
            case "\\":
                self._escaped = True
            case '"':
                self._in_string = not self._in_string
            case "{" | "[":
                self._depth += 1
            case _:
                self._depth -= 1
                self.whole = self._depth == 0
