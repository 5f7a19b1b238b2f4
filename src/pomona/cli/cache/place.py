"""Which folder `pomona cache` works on, and how it is looked at and taken."""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from pomona.cache.disk import BlockFolder
from pomona.cache.lock import FolderBusy
from pomona.cache.quarantine import bound
from pomona.cache.shelf import Shelf, look
from pomona.cli.transfer import transfer
from pomona.config import CacheConfig
from pomona.home import Home
from pomona.launch import cache_folder
from pomona.refusal import Refusal
from pomona.settings import Flags, load


class Place(NamedTuple):
    folder: Path
    config: CacheConfig


def resolve(folder: Path | None, config: Path | None) -> Place:
    """The folder that was named, else the one that `pomona serve` would use. Raises SettingsError."""
    home = Home.resolve()
    settings = load(Flags(config=config), os.environ, home).config
    chosen = folder.expanduser() if folder is not None else Path(cache_folder(settings, home))
    return Place(chosen.absolute(), settings.cache)


def survey(place: Place) -> Shelf:
    """What the folder holds; raises Refusal if it is none or cannot be read."""
    _check(place)
    try:
        return look(place.folder)
    except OSError as error:
        raise Refusal(f"{place.folder} cannot be read ({error.strerror}); mend its permissions") from error


def _check(place: Place) -> None:
    """Nothing is to be moved or deleted in a folder that only happens to have a subfolder of a like name."""
    if not place.folder.is_dir():
        raise Refusal(
            f"there is no cache folder {place.folder}; `pomona serve` makes it, or name another with --folder"
        )
    if os.access(place.folder, os.R_OK | os.X_OK) and not (place.folder / "lock").exists():
        raise Refusal(f"{place.folder} is no cache folder, it has no file `lock`; name another with --folder")


@contextlib.contextmanager
def taken(place: Place, make: bool = False) -> Iterator[BlockFolder]:
    """The folder, open and ours alone until the end; `make` makes it where there is none.

    Raises Refusal if a server uses it.
    """
    if not make or (place.folder.exists() and _names(place.folder)):
        _check(place)
    files = BlockFolder(place.folder, bound(place.config.max_bytes))
    cache_log = logging.getLogger("pomona.cache")
    level = cache_log.level
    cache_log.setLevel(logging.ERROR)  # what is moved and refused, the command says itself
    try:
        files.open()
        yield files
    except FolderBusy as error:
        raise Refusal(str(error)) from error
    except OSError as error:
        raise Refusal(f"{error}; mend the folder {place.folder}, its disk or its permissions") from error
    finally:
        cache_log.setLevel(level)
        files.close()


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise Refusal(f"{folder} is not a folder that can be read ({error.strerror}); mend it") from error


@contextlib.contextmanager
def advance(total: int, text: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, told of bytes as they are done."""
    done = 0
    with transfer(Console(stderr=True)) as report:

        def step(size: int) -> None:
            nonlocal done
            done += size
            report(min(done, total), total, text)

        step(0)
        yield step


def print_json(value: dict[str, object]) -> None:
    print(json.dumps(value, indent=2))
