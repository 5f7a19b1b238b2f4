"""The names of all configuration keys, as a TOML file writes them, and what a misspelt one may have meant."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args, get_type_hints

import msgspec


def config_keys(section: type, prefix: str = "") -> Iterator[str]:
    """Dotted names in the order of the tree: `gateway.port`; a key of an array of tables reads `models.id`."""
    for name, hint in get_type_hints(section).items():
        inner = _section(hint)
        if inner is None:
            yield prefix + name
        else:
            yield from config_keys(inner, f"{prefix}{name}.")


def unknown_key(table: Mapping[str, object], section: type) -> str | None:
    """The first name that the tree of `section` lacks, with the likely one; None if all are known."""
    known = list(config_keys(section))
    for key in _written(table, section):
        if key not in known:
            return f"{key}: there is no such key" + _suggestion(key, known)
    return None


def choices(section: type, path: Iterable[str]) -> tuple[str, ...]:
    """The words that a key may have; `path` is its name, section by section. Raises KeyError if there is no such."""
    hint: object = section
    for name in path:
        hint = get_type_hints(_section(hint) or section)[name]
    return tuple(word for word in get_args(hint) if isinstance(word, str))


def _written(table: Mapping[str, object], section: type, prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(section)
    for name, value in table.items():
        inner = _section(hints.get(name))
        tables = value if isinstance(value, list) else [value]
        if inner is None:
            yield prefix + name
            continue
        for entry in tables:
            if isinstance(entry, dict):
                yield from _written(entry, inner, f"{prefix}{name}.")


def _suggestion(key: str, known: list[str]) -> str:
    sections = [] if "." in key else [name.rpartition(".")[0] for name in known]
    likely = difflib.get_close_matches(key, known + sections, n=1, cutoff=0.75)
    last = key.rpartition(".")[2]
    likely = likely or [name for name in known if name.rpartition(".")[2] == last][:1]
    return f"; did you mean {likely[0]}?" if likely else "; deploy/pomona.toml lists all"


def _section(hint: object) -> type | None:
    """The section that a field holds, itself or as the element of a tuple."""
    for candidate in (hint, *get_args(hint)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None
