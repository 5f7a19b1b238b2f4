"""`bench cache` with the real Pomona and the tiny model."""

from pathlib import Path

import msgspec
from typer.testing import CliRunner

from pomona.cli.bench import bench_app
from pomona.cli.bench.reuse import Reuse, Source


def test_a_system_prompt_is_found_in_memory_and_behind_a_kill_on_disk(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    sizes = ["--rounds", "1", "--system-words", "400", "--turns", "3", "--max-tokens", "4"]
    arguments = ["cache", "--tiny", *sizes, "--ready-timeout", "120", "--out", str(out)]
    result = CliRunner().invoke(bench_app, arguments, standalone_mode=False)
    assert result.return_value == 0, result.output
    reuse = msgspec.json.decode(result.stdout, type=Reuse)
    assert reuse == msgspec.json.decode(out.read_bytes(), type=Reuse)
    cold, memory, disk = reuse.requests
    assert [one.source for one in reuse.requests] == [Source.COLD, Source.MEMORY, Source.DISK]
    assert cold.cached_tokens < 100 < 1000 < disk.cached_tokens <= memory.cached_tokens < memory.prompt_tokens
    assert reuse.memory is not None
    assert reuse.disk is not None
    assert [turn.turn for turn in reuse.turns] == [0, 1, 2]
    assert reuse.beyond_new is not None
    assert not reuse.interrupted
    assert "3 turns" in result.stderr
