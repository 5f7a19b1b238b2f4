"""Each thing that `pomona doctor` looks at, well and ill."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pomona.__main__ import main
from pomona.cli import checks
from pomona.cli.checks import Finding
from pomona.cli.mlx_probe import MlxProbe, probe_mlx
from pomona.config import CacheConfig, Config, GatewayConfig, ModelConfig
from pomona.home import Home
from pomona.settings import Settings
from tests.cli.chat_server import ChatServer, serving
from tests.support.tiny_model import build_tiny_model


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("POMONA_HOME", str(tmp_path))
    for name in ("POMONA_API_KEY", "POMONA_API_KEYS", "POMONA_HOST", "POMONA_PORT", "POMONA_CONFIG", "POMONA_LOG"):
        monkeypatch.delenv(name, raising=False)
    return Home.resolve()


def states(found: Iterator[Finding]) -> list[str]:
    return [finding.state for finding in found]


@pytest.mark.parametrize(
    ("system", "processor", "release", "state"),
    [
        ("darwin", "arm64", "14.0", "ok"),
        ("darwin", "arm64", "26.1.2", "ok"),
        ("darwin", "arm64", "13.7", "fail"),
        ("darwin", "x86_64", "15.1", "fail"),
        ("linux", "x86_64", "", "ok"),
        ("linux", "aarch64", "", "ok"),
        ("linux", "riscv64", "", "fail"),
        ("win32", "x86_64", "", "fail"),
    ],
)
def test_the_platform_is_one_that_mlx_has(system: str, processor: str, release: str, state: str) -> None:
    finding = checks.platform(system, processor, release)
    assert finding.state == state
    assert bool(finding.mend) == (state == "fail")


def test_mlx_is_asked_in_its_own_process() -> None:
    probe = probe_mlx({})
    assert probe.error == ""
    assert checks.mlx(probe).state == "ok"
    assert probe.version in checks.mlx(probe).text
    assert "Device(" in probe.device


def test_the_blas_that_is_loaded_is_the_one_that_is_named() -> None:
    probe = MlxProbe("1", "Device(cpu, 0)", False, ("/x/libm.so.6", "/x/libmkl_rt.so.3"))
    assert [finding.text for finding in checks.linear_algebra(probe)] == ["libmkl_rt.so.3, preloaded into workers"]
    probe = MlxProbe("1", "Device(cpu, 0)", False, ("/x/libm.so.6", "/x/libblas.so.3"))
    assert states(checks.linear_algebra(probe)) == ["warn"]


def test_on_a_mac_no_blas_is_looked_for() -> None:
    assert states(checks.linear_algebra(MlxProbe("1", "Device(gpu, 0)", True))) == []


def test_a_python_without_mlx_is_a_failure_with_its_last_line(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho Traceback >&2\necho 'ModuleNotFoundError: mlx' >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    assert checks.mlx(probe_mlx({}, str(broken))) == Finding(
        "mlx", "fail", "cannot be used: ModuleNotFoundError: mlx", "run: make setup"
    )
    assert checks.mlx(probe_mlx({}, str(tmp_path / "none"))).state == "fail"


def test_folders_that_do_not_exist_yet_are_well(home: Home) -> None:
    assert states(checks.folders(home, Config(cache=CacheConfig(min_free_bytes=0)))) == ["ok", "ok", "ok"]
    assert not home.models.exists()


def test_a_disk_below_the_floor_is_a_warning(home: Home) -> None:
    found = list(checks.folders(home, Config(cache=CacheConfig(min_free_bytes=1 << 60))))
    assert [(finding.name, finding.state) for finding in found][1] == ("cache folder", "warn")


def test_a_cache_that_is_off_is_not_looked_at(home: Home) -> None:
    found = checks.folders(home, Config(cache=CacheConfig(enabled=False)))
    assert [finding.name for finding in found] == ["model folder", "run folder"]


def test_a_file_in_place_of_a_folder_is_a_failure(home: Home) -> None:
    home.run.write_text("", encoding="utf-8")
    assert states(checks.folders(home, Config(cache=CacheConfig(enabled=False)))) == ["ok", "fail"]


def test_a_port_is_free_or_taken_or_pomonas_own() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        taken = checks.port(GatewayConfig(port=port))
    assert taken.state == "fail"
    assert str(port) in taken.text
    assert checks.port(GatewayConfig(port=port)) == Finding("port", "ok", f"{port} is free on 127.0.0.1")
    with serving(ChatServer(lambda _: [])) as server:
        port = int(server.url.rpartition(":")[2])
        assert checks.port(GatewayConfig(port=port)).text == f"{port}: Pomona is running at {server.url}"


def test_models_are_listed_damaged_ones_and_missing_ones_fail(home: Home, tmp_path: Path) -> None:
    assert [finding.text for finding in checks.models(home, Config())] == [
        "none yet; `pomona serve` fetches smollm2-135m-instruct (93 MB)"
    ]
    build_tiny_model(home.models / "whole")
    elsewhere = build_tiny_model(tmp_path / "elsewhere")
    (home.models / "broken").mkdir()
    (home.models / "broken" / "config.json").write_text("{", encoding="utf-8")
    config = Config(
        models=(
            ModelConfig(id="whole", path=str(home.models / "whole")),
            ModelConfig(id="elsewhere", path=str(elsewhere)),
            ModelConfig(id="gone", path=str(tmp_path / "gone")),
            ModelConfig(id="lost", path=str(home.models / "lost")),
            ModelConfig(id="smollm2-135m-instruct", path=str(home.models / "smollm2-135m-instruct")),
        )
    )
    found = list(checks.models(home, config))
    assert [finding.state for finding in found] == ["ok", "fail", "ok", "fail", "fail"]
    for finding, word in zip(found, ("whole: llama", "broken", "elsewhere: ", "gone: ", "lost: "), strict=True):
        assert word in finding.text


def test_the_configuration_is_named_with_its_warnings(home: Home) -> None:
    settings = Settings(Config(gateway=GatewayConfig(api_keys=("a", "b"))), home.config, ("others can read it",))
    assert list(checks.configuration(settings, home)) == [
        Finding("configuration", "ok", f"{home.config}; API keys: 2"),
        Finding("configuration", "warn", "others can read it"),
    ]


def test_the_command_prints_a_line_for_each_finding(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line[6:20].strip() for line in lines if not line.startswith(" ")]
    assert {"platform", "python", "mlx", "configuration", "model folder", "run folder", "port", "model"} <= set(names)
    assert all(line[:4].strip() in ("ok", "warn", "") for line in lines)


def test_a_failure_is_exit_code_1_and_the_other_checks_still_run(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.config.write_text("[gateway]\nprot = 1", encoding="utf-8")
    assert main(["doctor"]) == 1
    printed = capsys.readouterr()
    assert f"fail  configuration  {home.config}: gateway.prot: there is no such key" in printed.out
    assert "port" in printed.out
    assert printed.err == ""
