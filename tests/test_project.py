"""What people touch around the code: the commands of the Makefile, the example configuration, the service files."""

import plistlib
import re
import subprocess
import tomllib
from pathlib import Path

import msgspec
import pytest

from pomona.cache.messages import CacheStats
from pomona.config import Config
from pomona.config_keys import config_keys
from pomona.gateway.cache_figures import CacheCollector
from pomona.gateway.metrics import Metrics
from pomona.scheduler.messages import Stats, WorkerSnapshot
from pomona.settings import INTERNAL
from pomona.workers.messages import MethodFigures, WorkerStats
from pomona.workers.models import embedded

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "deploy" / "pomona.toml"
PLISTS = sorted((ROOT / "deploy" / "launchd").glob("*.plist"))


def uncommented() -> dict[str, object]:
    """The example with every key switched on: `#key = value` is a key, `# text` is prose."""
    return tomllib.loads(re.sub(r"(?m)^#(?=[\w\[])", "", EXAMPLE.read_text(encoding="utf-8")))


def test_the_example_configuration_as_it_stands_changes_nothing() -> None:
    table = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    assert msgspec.convert(table, Config) == Config()


def test_the_example_configuration_lists_every_key_and_no_other() -> None:
    def keys(table: dict[str, object], prefix: str = "") -> set[str]:
        found: set[str] = set()
        for name, value in table.items():
            inner = value[0] if isinstance(value, list) else value
            found |= keys(inner, f"{prefix}{name}.") if isinstance(inner, dict) else {prefix + name}
        return found

    assert keys(uncommented()) == set(config_keys(Config)) - {*INTERNAL, "gateway.api_keys"}


def test_the_example_configuration_shows_the_real_defaults() -> None:
    shown = msgspec.to_builtins(msgspec.convert(uncommented(), Config))
    real = msgspec.to_builtins(Config())
    for section in ("gateway", "scheduler", "worker", "cache"):
        for key, default in real[section].items():
            assert default in (None, shown[section][key]), f"{section}.{key}"
    assert (shown["ready_timeout_s"], shown["stop_grace_s"]) == (real["ready_timeout_s"], real["stop_grace_s"])


def test_each_key_of_the_example_is_explained_above_it() -> None:
    above = ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if re.match(r"#\w+ =", line):
            assert above.startswith("# "), line
        above = line


@pytest.mark.parametrize("target", ["setup", "serve", "test", "check", "bench", "clean", "help"])
def test_the_makefile_has_the_target(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_make_help_names_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert phony is not None
    assert re.findall(r"make (\w+)", shown) == [name for name in phony[1].split() if name != "FORCE"]


def test_every_dependency_is_pinned_within_its_bound() -> None:
    pins = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["dependencies"] + project["optional-dependencies"]["dev"]:
        parsed = re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", requirement.lower())
        assert parsed is not None, requirement
        pin = pins.get(parsed[1]) or pins.get(parsed[1].replace("-", "_"))
        assert pin is not None, requirement
        assert numbers(pin) >= numbers(parsed[2]), requirement


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def python(folder: Path, name: str, describes: str, new_enough: bool) -> None:
    """A stand-in for an interpreter of another machine: it answers the two questions that the setup script asks."""
    command = folder / name
    answer = f'*platform*) echo "{describes}" ;; *) exit {0 if new_enough else 1} ;;'
    command.write_text(f'#!/bin/sh\ncase "$2" in {answer} esac\n', encoding="utf-8")
    command.chmod(0o755)


@pytest.mark.parametrize(
    ("describes", "new_enough", "found"),
    [
        (None, False, "found: none."),
        ("3.9 Darwin arm64", False, "found: python3 (3.9)."),
        ("3.12 Darwin x86_64", True, "found: python3 (an Intel build; MLX needs an arm64 Python)."),
    ],
)
def test_setup_says_in_one_line_which_python_it_needs(
    tmp_path: Path, describes: str | None, new_enough: bool, found: str
) -> None:
    if describes is not None:
        python(tmp_path, "python3", describes, new_enough)
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "scripts" / "setup.sh")],
        cwd=tmp_path,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"pomona: Python 3.11 or newer is needed; {found} Install it ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("path", PLISTS, ids=lambda path: path.stem)
def test_a_launchd_file_has_absolute_paths_and_a_label_like_its_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for placeholder, value in {"@ROOT@": "/opt/pomona", "@HOME@": "/Users/someone", "@USER@": "someone"}.items():
        text = text.replace(placeholder, value)
    job = plistlib.loads(text.encode())
    assert "@" not in text
    assert job["Label"] == path.stem
    assert job["ProgramArguments"] == ["/opt/pomona/.venv/bin/pomona", "serve"]
    for key in ("WorkingDirectory", "StandardOutPath", "StandardErrorPath"):
        assert job[key].startswith("/Users/someone")
    assert all(folder.startswith("/") for folder in job["EnvironmentVariables"]["PATH"].split(":"))
    assert job["ExitTimeOut"] > Config().stop_grace_s
    assert job["KeepAlive"] == {"SuccessfulExit": False}


def test_launchd_is_served_as_agent_and_as_daemon() -> None:
    jobs = {path.stem: plistlib.loads(path.read_bytes()) for path in PLISTS}
    assert "UserName" not in jobs["dev.pomona.agent"]
    assert jobs["dev.pomona.daemon"]["UserName"] == "@USER@"
    assert jobs["dev.pomona.daemon"]["EnvironmentVariables"]["HOME"] == "@HOME@"


@pytest.mark.parametrize("path", PLISTS, ids=lambda path: path.stem)
def test_launchd_services_are_stopped_so_that_they_stay_so(path: Path) -> None:
    documented = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert re.search(rf"launchctl bootstrap .*/{path.name}", documented)
    assert re.search(rf"\| stop \|.*launchctl bootout [^`]*/{path.stem}`", documented)


ROOMS = ("gateway", "scheduler", "workers", "cache")
FACES = {"messages", "client", "cache.keys", "cache.layout", "workers.kv_cost"} | {
    f"workers.constraint.{module}" for module in ("error", "grammar", "schema")
}
"""What a room may import from another one."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_the_faces_of_the_others_only(room: str) -> None:
    others = "|".join(other for other in ROOMS if other != room)
    for path in (ROOT / room).rglob("*.py"):
        for other, module in re.findall(rf"(?m)^\s*from pomona\.({others})\.([\w.]+) import", path.read_text("utf-8")):
            assert {module, f"{other}.{module}"} & FACES, f"{path.relative_to(ROOT)}: {other}.{module}"


DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_the_readme_asks_the_default_model_at_the_default_address() -> None:
    gateway = Config().gateway
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"curl http://{gateway.host}:{gateway.port}/v1/chat/completions" in readme
    assert f'"model": "{embedded.ID}"' in readme


def test_the_metrics_that_are_documented_exist() -> None:
    guesses = MethodFigures(tested=(1,), accepted=(1,))
    worker = WorkerSnapshot("worker:a", 0, "a", WorkerStats(speculation={"ngram": guesses}), 0.0)
    metrics = Metrics()
    metrics.ttft.labels("a").observe(1)
    metrics.gap.labels("a").observe(1)
    stats = Stats(0, 0, 0, 0, 0, 0, {"queue_full": 1}, 0, 0, (worker,))
    cache = CacheStats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    exposed = set(re.findall(r"(?m)^(pomona_\w+)", metrics.render(stats, CacheCollector(cache)).decode()))
    exposed |= {name.removesuffix("_count") for name in exposed}
    named = set(re.findall(r"pomona_(?:gateway|scheduler|worker|cache)_\w+", (ROOT / "docs/operations.md").read_text()))
    assert named
    assert named <= exposed


def test_ci_runs_what_the_readme_names() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], timeout=30, check=True)
