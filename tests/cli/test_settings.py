"""Where values come from, and the one line that each mistake gives."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pomona.config import Config, SpeculationConfig
from pomona.home import Home
from pomona.settings import Flags, Settings, SettingsError, is_loopback, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pomona.toml"


def home(file: Path) -> Home:
    return Home(file.parent / "models", file.parent / "cache", file.parent / "run", file)


def loaded(file: Path, text: str, flags: Flags = Flags(), environment: Mapping[str, str] | None = None) -> Settings:  # noqa: B008
    file.write_text(text, encoding="utf-8")
    return load(flags, environment or {}, home(file))


def refusal(file: Path, text: str, flags: Flags = Flags(), environment: Mapping[str, str] | None = None) -> str:  # noqa: B008
    with pytest.raises(SettingsError) as caught:
        loaded(file, text, flags, environment)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


def test_without_any_source_the_defaults_hold(file: Path) -> None:
    assert load(Flags(), {}, home(file)) == Settings(Config(), None)


def test_command_line_beats_environment_beats_file(file: Path) -> None:
    text = '[gateway]\nhost = "127.0.0.2"\nport = 1'
    environment = {"POMONA_HOST": "127.0.0.3", "POMONA_PORT": "2"}

    def bound(settings: Settings) -> tuple[str, int]:
        return settings.config.gateway.host, settings.config.gateway.port

    assert bound(loaded(file, text)) == ("127.0.0.2", 1)
    assert bound(loaded(file, text, environment=environment)) == ("127.0.0.3", 2)
    assert bound(loaded(file, text, Flags("127.0.0.4", 0), environment)) == ("127.0.0.4", 0)
    assert loaded(file, text).file == file


def test_empty_variables_count_as_unset(file: Path) -> None:
    environment = {"POMONA_HOST": "", "POMONA_PORT": " ", "POMONA_API_KEYS": ",", "POMONA_CONFIG": ""}
    assert loaded(file, "", environment=environment).config == Config()


def test_a_file_named_by_flag_beats_one_named_by_variable_beats_the_usual_one(file: Path) -> None:
    usual, variable, flag = file, file.with_name("variable.toml"), file.with_name("flag.toml")
    for path, port in ((usual, 1), (variable, 2), (flag, 3)):
        path.write_text(f"[gateway]\nport = {port}", encoding="utf-8")
    environment = {"POMONA_CONFIG": str(variable)}
    assert load(Flags(), {}, home(usual)).config.gateway.port == 1
    assert load(Flags(), environment, home(usual)).config.gateway.port == 2
    assert load(Flags(config=flag), environment, home(usual)).config.gateway.port == 3


def test_relative_paths_of_a_file_start_at_its_folder(file: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("abc\n", encoding="utf-8")
    (tmp_path / "keys").chmod(0o600)
    config = loaded(
        file,
        '[gateway]\napi_key_file = "keys"\n[cache]\nfolder = "kv"\n'
        '[[models]]\nid = "a"\npath = "weights/a"\n[[models]]\nid = "b"\npath = "/weights/b"\n[[models]]\nid = "c"',
    ).config
    assert config.gateway.api_keys == ("abc",)
    assert config.cache.folder == str(tmp_path / "kv")
    assert [model.path for model in config.models] == [
        str(tmp_path / "weights" / "a"),
        "/weights/b",
        str(tmp_path / "models" / "c"),
    ]


def test_a_draft_model_is_an_id_or_a_folder(file: Path, tmp_path: Path) -> None:
    names = ("small", "org/small", "./small", "/weights/small")
    text = "".join(
        f'[[models]]\nid = "{index}"\n[models.speculation]\ndraft_model = "{name}"\ncorrector = "fitted"\n'
        for index, name in enumerate(names)
    )
    speculations = [model.speculation for model in loaded(file, text).config.models]
    assert [speculation.draft_model for speculation in speculations] == [
        str(tmp_path / "models" / "small"),
        str(tmp_path / "models" / "org" / "small"),
        str(tmp_path / "small"),
        "/weights/small",
    ]
    assert {speculation.corrector for speculation in speculations} == {str(tmp_path / "fitted")}


def test_what_a_file_says_of_speculation_holds_for_its_model_only(file: Path) -> None:
    text = '[[models]]\nid = "a"\n[models.speculation]\nmethod = "layers"\ndepth = 3\nlayers = 8\n[[models]]\nid = "b"'
    first, second = loaded(file, text).config.models
    assert first.speculation == SpeculationConfig(method="layers", depth=3, layers=8)
    assert second.speculation == SpeculationConfig()


def test_a_tilde_in_a_path_is_the_home_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert loaded(file, '[cache]\nfolder = "~/kv"').config.cache.folder == "/home/someone/kv"


def test_keys_of_file_and_environment_join_without_doubles(file: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# team\none\n\n  two  \n", encoding="utf-8")
    keys.chmod(0o600)
    environment = {"POMONA_API_KEYS": "three, one", "POMONA_API_KEY": "four"}
    settings = loaded(file, '[gateway]\napi_key_file = "keys"', environment=environment)
    assert settings.config.gateway.api_keys == ("three", "one", "four", "two")
    assert settings.warnings == ()


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_file_that_others_can_read_gives_a_warning(file: Path, tmp_path: Path, mode: int) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one", encoding="utf-8")
    keys.chmod(mode)
    (warning,) = loaded(file, '[gateway]\napi_key_file = "keys"').warnings
    assert warning == f"{keys}: other users of this machine can read the keys; run: chmod 600 {keys}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[gateway]\nprot = 1", "gateway.prot: there is no such key; did you mean gateway.port?"),
        ("[gatway]\nport = 1", "gatway: there is no such key; did you mean gateway?"),
        ("port = 1", "port: there is no such key; did you mean gateway.port?"),
        ('[[models]]\nid = "a"\npth = "b"', "models.pth: there is no such key; did you mean models.path?"),
        ("[gateway]\nzzz = 1", "gateway.zzz: there is no such key; deploy/pomona.toml lists all"),
        ('[gateway]\nport = "x"', "gateway.port: must be an integer, not 'x'"),
        ("[gateway]\nport = 70000", "gateway.port: must be an integer <= 65535, not 70000"),
        ("[gateway]\nport = true", "gateway.port: must be an integer, not True"),
        ("[gateway]\nhost = [1]", "gateway.host: must be a string, not an array"),
        ("gateway = 3", "gateway: must be a table, not 3"),
        ('[worker]\nstall_s = "fast"', "worker.stall_s: must be a number, not 'fast'"),
        ("stop_grace_s = inf", "stop_grace_s: must be a number <= 10000000.0, not inf"),
        ("[cache]\nmax_bytes = 1" + "0" * 18, f"cache.max_bytes: must be an integer <= {2**53}, not 1" + "0" * 18),
        (
            "[worker]\nmax_running = 1" + "0" * 18,
            f"worker.max_running: must be an integer <= {2**53}, not 1" + "0" * 18,
        ),
        ("[worker]\nstall_s = -1", "worker.stall_s: must be a number >= 0.0, not -1"),
        ("[worker]\nmax_running = 0", "worker.max_running: must be an integer >= 1, not 0"),
        ("[cache]\nenabled = 1", "cache.enabled: must be true or false, not 1"),
        ("models = 3", "models: must be an array, not 3"),
        ('[[models]]\npath = "a"', "models[0]: the key `id` is missing; add it"),
        ('[[models]]\nid = "a"\n[[models]]\nid = 4', "models[1].id: must be a string, not 4"),
        ('[[models]]\nid = ""', "models[0].id: must be a string of length >= 1, not ''"),
        ('[[models]]\nid = "a"\nmax_context = "b"', "models[0].max_context: must be an integer, not 'b'"),
        (
            '[[models]]\nid = "a"\n[models.speculation]\nmethod = "luck"',
            "models[0].speculation.method: must be auto, off, ngram, grammar, draft, mtp or layers, not 'luck'",
        ),
        (
            '[[models]]\nid = "a"\n[models.speculation]\ndepth = 17',
            "models[0].speculation.depth: must be an integer <= 16, not 17",
        ),
        (
            '[[models]]\nid = "a"\n[models.speculation]\ndepth = 0',
            "models[0].speculation.depth: must be an integer >= 1, not 0",
        ),
        (
            '[[models]]\nid = "a"\n[models.speculation]\ndraft_model = ""',
            "models[0].speculation.draft_model: must be a string of length >= 1, not ''",
        ),
        (
            '[[models]]\nid = "a"\n[models.speculation]\nmodel = "b"',
            "models.speculation.model: there is no such key; did you mean models.speculation.method?",
        ),
        (
            '[[models]]\nid = "a"\n[[models]]\nid = "b"\n[models.speculation]\nmethod = "draft"',
            'models[1].speculation: the method "draft" needs `draft_model`; add it',
        ),
        (
            '[[models]]\nid = "a"\n[models.speculation]\nmethod = "layers"',
            'models[0].speculation: the method "layers" needs `layers`; add it',
        ),
        ('[[models]]\nid = "a"\nspeculation = "off"', "models[0].speculation: must be a table, not 'off'"),
        (
            '[[models]]\nid = "a"\n[[models]]\nid = "a"',
            "models: the id `a` stands there 2 times; give each its own",
        ),
        (
            'runtime_folder = "x"',
            "runtime_folder: is set by Pomona itself; remove it (POMONA_HOME moves all folders)",
        ),
        (
            'cache_folder = "x"',
            "cache_folder: is set by Pomona itself; remove it (POMONA_HOME moves all folders)",
        ),
        (
            '[gateway]\napi_keys = ["secret"]',
            "gateway.api_keys: keys do not belong into the configuration; put them into a file of mode 600, "
            "one a line, and name it as gateway.api_key_file, or set POMONA_API_KEYS",
        ),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_mend(file: Path, text: str, expected: str) -> None:
    message = refusal(file, text)
    assert message == f"{file}: {expected}"
    assert "secret" not in message


def test_a_long_value_is_cut_in_the_message(file: Path) -> None:
    assert refusal(file, f'[gateway]\nport = "{"x" * 100}"').endswith("not '" + "x" * 36 + "...")


def test_bad_toml_is_named_with_its_line(file: Path) -> None:
    message = refusal(file, "[gateway]\nport = \n")
    assert message.startswith(f"{file}: is not valid TOML: ")
    assert "line 2" in message


def test_text_that_is_not_utf8_is_named(file: Path) -> None:
    file.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="is not UTF-8 text; save it as UTF-8"):
        load(Flags(), {}, home(file))


def test_a_named_file_that_is_missing_is_an_error(file: Path) -> None:
    with pytest.raises(SettingsError, match="there is no such file; mend --config or POMONA_CONFIG"):
        load(Flags(config=file), {}, home(file))


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read \(Is a directory\)"):
        load(Flags(), {}, home(tmp_path))


@pytest.mark.parametrize("text", ["x", "-1", "65536", "²", "1.5"])
def test_a_port_variable_that_is_no_port_is_named(file: Path, text: str) -> None:
    message = refusal(file, "", environment={"POMONA_PORT": text})
    assert message == f"POMONA_PORT: must be an integer from 0 to 65535, not {text!r}"


def test_the_highest_port_is_a_port(file: Path) -> None:
    assert loaded(file, "", environment={"POMONA_PORT": "65535"}).config.gateway.port == 65535


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no such key file; mend gateway.api_key_file"),
        (b"# only words\n\n", "the key file holds no key; write one a line"),
        (b"good\ntwo words\n", "line 2: a key may hold visible ASCII characters only, no spaces"),
        ("schlüssel".encode(), "line 1: a key may hold visible ASCII characters only, no spaces"),
        (b"\xff", "the key file is not UTF-8 text; write one key a line"),
    ],
)
def test_a_bad_key_file_is_named_and_its_keys_are_not(
    file: Path, tmp_path: Path, content: bytes | None, expected: str
) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content)
    assert refusal(file, '[gateway]\napi_key_file = "keys"') == f"{keys}: {expected}"


def test_a_key_file_that_is_a_folder_is_named(file: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    message = refusal(file, '[gateway]\napi_key_file = "keys"')
    assert message == f"{tmp_path / 'keys'}: the key file cannot be read: Is a directory; mend that"


def test_a_bad_key_in_the_environment_is_named_by_place(file: Path) -> None:
    message = refusal(file, "", environment={"POMONA_API_KEYS": "fine,not fine"})
    assert message == "POMONA_API_KEYS: key 2: a key may hold visible ASCII characters only, no spaces"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "studio.local"])
def test_a_bind_that_others_reach_needs_a_key(file: Path, host: str) -> None:
    assert refusal(file, "", Flags(host=host)) == (
        f"host {host}: other machines could reach it and no API key is set; "
        "set gateway.api_key_file or POMONA_API_KEYS, or bind 127.0.0.1"
    )
    assert loaded(file, "", Flags(host=host), {"POMONA_API_KEY": "k"}).config.gateway.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_key(file: Path, host: str) -> None:
    assert is_loopback(host)
    assert loaded(file, "", Flags(host=host)).config.gateway.host == host
