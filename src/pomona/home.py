"""Where Pomona keeps its files."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import platformdirs


@dataclass(frozen=True)
class Home:
    """Three folders and a file, none of which need exist yet."""

    models: Path
    """The model library."""
    cache: Path
    """Stored KV blocks; may be deleted while nothing runs."""
    run: Path
    """Sockets and what else ends with the running system."""
    config: Path
    """The configuration file that is read if no other one is named."""

    @classmethod
    def resolve(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """`models/`, `cache/`, `run/` and `pomona.toml` below POMONA_HOME, else in the platform's user folders."""
        root = environment.get("POMONA_HOME")
        if root:
            base = Path(root).expanduser().absolute()
            return cls(base / "models", base / "cache", base / "run", base / "pomona.toml")
        folders = platformdirs.PlatformDirs("pomona", appauthor=False)
        # Outside a login session Linux has no runtime folder; platformdirs would warn and name one below /tmp.
        sessionless = sys.platform == "linux" and not environment.get("XDG_RUNTIME_DIR")
        run = folders.user_state_path / "run" if sessionless else folders.user_runtime_path
        return cls(
            folders.user_data_path / "models",
            folders.user_cache_path,
            run,
            folders.user_config_path / "pomona.toml",
        )
