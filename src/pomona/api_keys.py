"""Where API keys come from: a file of mode 600, one a line, and the environment. No message ever shows a key."""

import stat
from collections.abc import Mapping
from pathlib import Path

from pomona.refusal import SettingsError

VARIABLES = ("POMONA_API_KEYS", "POMONA_API_KEY")


def keys_from_environment(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Comma-separated keys of POMONA_API_KEYS and POMONA_API_KEY; raises SettingsError for one unfit for a header."""
    keys: list[str] = []
    for variable in VARIABLES:
        for place, text in enumerate(environment.get(variable, "").split(","), start=1):
            if key := text.strip():
                keys.append(_checked(key, f"{variable}: key {place}"))
    return tuple(keys)


class KeyFile:
    """A file with one key a line; blank lines and lines that start with # do not count."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[str, ...]:
        """At least one key; raises SettingsError where there is none, since that would leave the server open."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError as error:
            raise SettingsError(f"{self.path}: there is no such key file; mend gateway.api_key_file") from error
        except OSError as error:
            raise SettingsError(f"{self.path}: the key file cannot be read: {error.strerror}; mend that") from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"{self.path}: the key file is not UTF-8 text; write one key a line") from error
        keys = tuple(
            _checked(key, f"{self.path}: line {number}")
            for number, line in enumerate(lines, start=1)
            if (key := line.strip()) and not key.startswith("#")
        )
        if not keys:
            raise SettingsError(f"{self.path}: the key file holds no key; write one a line")
        return keys

    def warnings(self) -> tuple[str, ...]:
        if stat.S_IMODE(self.path.stat().st_mode) & 0o077:
            return (f"{self.path}: other users of this machine can read the keys; run: chmod 600 {self.path}",)
        return ()


def _checked(key: str, place: str) -> str:
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise SettingsError(f"{place}: a key may hold visible ASCII characters only, no spaces")
    return key
