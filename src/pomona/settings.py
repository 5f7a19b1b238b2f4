"""How the configuration comes about: defaults, then file, environment and command line, read once at the start."""

import ipaddress
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from pomona.api_keys import KeyFile, keys_from_environment
from pomona.config import Config, GatewayConfig, ModelConfig, SpeculationConfig
from pomona.config_keys import choices, unknown_key
from pomona.home import Home
from pomona.refusal import SettingsError
from pomona.runtime.wire import replace

Table = dict[str, object]
"""A TOML table as tomllib gives it."""

INTERNAL = ("runtime_folder", "cache_folder")
"""Keys of the tree that the launcher fills and no file may set."""


class Flags(NamedTuple):
    """What the command line said; None where it said nothing."""

    host: str | None = None
    port: int | None = None
    config: Path | None = None


class Settings(NamedTuple):
    config: Config
    file: Path | None
    """The file that was read, if there was one."""
    warnings: tuple[str, ...] = ()
    """One line each; nothing that stops the start."""


def load(flags: Flags, environment: Mapping[str, str], home: Home) -> Settings:
    """The resolved configuration.

    A file that was named must exist; `home.config` is read if it does. Models without a path lie in `home.models`.
    Raises SettingsError in one line that names the file or variable, the key and the mend.
    """
    file = config_file(flags, environment, home)
    config = Config() if file is None else _resolve(file, read(file, home.models))
    gateway, warnings = _gateway(config.gateway, flags, environment)
    _refuse_open_bind(gateway)
    return Settings(replace(config, gateway=gateway), file, warnings)


def config_file(flags: Flags, environment: Mapping[str, str], home: Home) -> Path | None:
    """The file to read; None where none was named and the usual one does not exist."""
    named = flags.config or environment.get("POMONA_CONFIG")
    if named:
        return Path(named).expanduser()
    return home.config if home.config.exists() else None


def read(file: Path, models: Path) -> Config:
    """What `file` says, checked key by key; relative paths are still as written."""
    table = _parse(file)
    _refuse_misplaced(file, table)
    if (problem := unknown_key(table, Config)) is not None:
        raise SettingsError(f"{file}: {problem}")
    _place_models(table, models)
    try:
        config = msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{file}: {_explain(str(error), table)}") from error
    for model_id, times in Counter(model.id for model in config.models).items():
        if times > 1:
            raise SettingsError(f"{file}: models: the id `{model_id}` stands there {times} times; give each its own")
    for index, model in enumerate(config.models):
        if (need := _lacking(model.speculation)) is not None:
            method = model.speculation.method
            raise SettingsError(f'{file}: models[{index}].speculation: the method "{method}" needs `{need}`; add it')
    return config


def _lacking(speculation: SpeculationConfig) -> str | None:
    """The key without which the chosen method cannot work."""
    match speculation.method:
        case "draft" if speculation.draft_model is None:
            return "draft_model"
        case "layers" if speculation.layers is None:
            return "layers"
        case _:
            return None


def _parse(file: Path) -> Table:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"{file}: there is no such file; mend --config or POMONA_CONFIG") from error
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read ({error.strerror}); mend its permissions or the path") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: is not UTF-8 text; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file}: is not valid TOML: {error}") from error


def _refuse_misplaced(file: Path, table: Table) -> None:
    for key in INTERNAL:
        if key in table:
            raise SettingsError(f"{file}: {key}: is set by Pomona itself; remove it (POMONA_HOME moves all folders)")
    gateway = table.get("gateway")
    if isinstance(gateway, dict) and "api_keys" in gateway:
        raise SettingsError(
            f"{file}: gateway.api_keys: keys do not belong into the configuration; put them into a file of mode 600, "
            "one a line, and name it as gateway.api_key_file, or set POMONA_API_KEYS"
        )


def _place_models(table: Table, folder: Path) -> None:
    """A model without a path, and a draft model named by its id, lie in `folder`."""
    models = table.get("models")
    for model in models if isinstance(models, list) else ():
        if not isinstance(model, dict):
            continue
        if isinstance(model.get("id"), str):
            model.setdefault("path", str(folder / model["id"]))
        if isinstance(speculation := model.get("speculation"), dict):
            name = speculation.get("draft_model")
            if isinstance(name, str) and name and not name.startswith((".", "/", "~")):
                speculation["draft_model"] = str(folder / name)


KINDS = {"int": "an integer", "float": "a number", "str": "a string", "bool": "true or false", "array": "an array"}


def _explain(message: str, table: Table) -> str:
    """msgspec's error with the key as the file writes it, the value found there and plain words for types."""
    what, _, where = message.partition(" - at `$")
    path = where.rstrip("`").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", what):
        return f"{path}: the key `{missing[1]}` is missing; add it"
    if what.startswith("Invalid enum value"):
        *others, last = choices(Config, re.findall(r"[a-z_]+", path))
        expected = f"{', '.join(others)} or {last}"
    else:
        expected = what.removeprefix("Expected ").partition(", got ")[0]
        expected = re.sub(r"`([^`]*)`", lambda kind: _in_words(kind[1]), expected)
    found: object = table
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        if isinstance(found, dict):
            found = found[name]
        elif isinstance(found, list):
            found = found[int(index)]
    return f"{path}: must be {expected}, not {_short(found)}"


def _in_words(kinds: str) -> str:
    names = [KINDS.get(kind, "a table" if kind == "object" else kind) for kind in kinds.split(" | ") if kind != "null"]
    return " or ".join(names)


def _short(value: object) -> str:
    text = "a table" if isinstance(value, dict) else "an array" if isinstance(value, list) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _resolve(file: Path, config: Config) -> Config:
    """Relative paths in a file are relative to its folder."""

    def absolute(path: str) -> str:
        return str((file.parent / Path(path).expanduser()).absolute())

    def model_in_place(model: ModelConfig) -> ModelConfig:
        draft, corrector = (
            path if path is None else absolute(path)
            for path in (model.speculation.draft_model, model.speculation.corrector)
        )
        speculation = replace(model.speculation, draft_model=draft, corrector=corrector)
        return replace(model, path=absolute(model.path), speculation=speculation)

    gateway, cache = config.gateway, config.cache
    if gateway.api_key_file is not None:
        gateway = replace(gateway, api_key_file=absolute(gateway.api_key_file))
    if cache.folder is not None:
        cache = replace(cache, folder=absolute(cache.folder))
    return replace(config, gateway=gateway, cache=cache, models=tuple(map(model_in_place, config.models)))


def _gateway(
    gateway: GatewayConfig, flags: Flags, environment: Mapping[str, str]
) -> tuple[GatewayConfig, tuple[str, ...]]:
    keys = keys_from_environment(environment)
    warnings: tuple[str, ...] = ()
    if gateway.api_key_file is not None:
        key_file = KeyFile(Path(gateway.api_key_file))
        keys += key_file.read()
        warnings = key_file.warnings()
    host = flags.host or environment.get("POMONA_HOST") or gateway.host
    port = flags.port if flags.port is not None else _port(environment)
    port = gateway.port if port is None else port
    return replace(gateway, host=host, port=port, api_keys=tuple(dict.fromkeys(keys))), warnings


def _port(environment: Mapping[str, str]) -> int | None:
    text = environment.get("POMONA_PORT", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise SettingsError(f"POMONA_PORT: must be an integer from 0 to 65535, not {_short(text)}")
    return int(text)


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server bound to `host`; any other name counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _refuse_open_bind(gateway: GatewayConfig) -> None:
    if not gateway.api_keys and not is_loopback(gateway.host):
        raise SettingsError(
            f"host {gateway.host}: other machines could reach it and no API key is set; "
            "set gateway.api_key_file or POMONA_API_KEYS, or bind 127.0.0.1"
        )
