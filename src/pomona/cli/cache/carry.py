"""`pomona cache export` and `pomona cache import`: stored prompts on their way to another machine."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pomona.cache.archive import NoArchive, Outcome, State, export_blocks, import_blocks
from pomona.cache.messages import BlockKey
from pomona.cache.service import CacheService
from pomona.cache.shelf import Shelf, StoredFile
from pomona.cli.cache.place import Place, advance, print_json, survey, taken
from pomona.refusal import Refusal
from pomona.runtime.mailbox import now
from pomona.runtime.wire import replace

TROUBLE: tuple[State, ...] = ("bad", "foreign", "refused")


def pack(place: Place, target: Path, keys: Sequence[str], as_json: bool) -> int:
    """Exit code 1 if a block was damaged and left out. Raises Refusal."""
    files = _chosen(survey(place), keys, place)
    total = sum(file.block.size for file in files)
    try:
        with advance(total, f"writing {target}") as done:
            outcomes = list(export_blocks(files, target.expanduser(), done))
    except FileExistsError as error:
        raise Refusal(f"{target} exists already; move it away or choose another name") from error
    except OSError as error:
        raise Refusal(f"{target} cannot be written: {error.strerror or error}") from error
    return _report(target, outcomes, as_json, "written")


def _chosen(shelf: Shelf, prefixes: Sequence[str], place: Place) -> tuple[StoredFile, ...]:
    """The blocks that were asked for with all before them, heads first; all blocks for no prefixes."""
    if not shelf.files:
        raise Refusal(f"no blocks are stored in {place.folder}; there is nothing to export")
    if not prefixes:
        return shelf.heads_first()
    chosen: dict[BlockKey, StoredFile] = {}
    for prefix in prefixes:
        found = shelf.find(prefix)
        if not found:
            raise Refusal(f"no stored block has a key that begins with {prefix!r}; see: pomona cache list")
        if len(found) > 1:
            raise Refusal(f"{len(found)} keys begin with {prefix!r}; give more digits")
        chosen.update((file.block.key, file) for file in shelf.lineage(found[0].block.key))
    return tuple(chosen.values())


def unpack(place: Place, source: Path, as_json: bool) -> int:
    """Exit code 1 if a block was refused, for whatever reason. Raises Refusal."""
    source = source.expanduser()
    try:
        total = source.stat().st_size
        source.open("rb").close()
    except OSError as error:
        raise Refusal(f"{source} cannot be read: {error.strerror or error}") from error
    with taken(place, make=True) as files, advance(total, f"reading {source}") as done:
        service = CacheService(files, replace(place.config, enabled=True), incarnation=0)
        service.open(now())
        try:
            outcomes = list(import_blocks(source, service, done, now))
        except NoArchive as error:
            raise Refusal(str(error)) from error
        finally:
            service.close(now())
    return _report(place.folder, outcomes, as_json, "stored")


WORDS: Mapping[State, str] = {
    "present": "there already",
    "gone": "evicted meanwhile",
    "bad": "damaged",
    "foreign": "no blocks",
    "refused": "refused",
}


def _report(where: Path, outcomes: Sequence[Outcome], as_json: bool, done: str) -> int:
    counts = Counter(outcome.state for outcome in outcomes)
    trouble = [outcome for outcome in outcomes if outcome.state in TROUBLE]
    if as_json:
        states: dict[str, object] = {state: counts[state] for state in ("done", "present", "gone", *TROUBLE)}
        print_json({"to": str(where), **states, "trouble": [outcome._asdict() for outcome in trouble]})
        return 1 if trouble else 0
    for outcome in trouble:
        print(f"pomona: {outcome.name!r}: {outcome.reason}", file=sys.stderr)
    others = "".join(f", {counts[state]} {word}" for state, word in WORDS.items() if counts[state])
    print(f"{counts['done']} blocks {done}{others}: {where}")
    return 1 if trouble else 0
