from pathlib import Path

from pomona.home import Home


def test_everything_lies_below_pomona_home(tmp_path: Path) -> None:
    home = Home.resolve({"POMONA_HOME": str(tmp_path)})
    assert (home.models, home.cache, home.run) == (tmp_path / "models", tmp_path / "cache", tmp_path / "run")


def test_a_relative_home_becomes_absolute() -> None:
    assert Home.resolve({"POMONA_HOME": "orchard"}).models == Path.cwd() / "orchard" / "models"


def test_without_it_the_platforms_user_folders_are_used() -> None:
    home = Home.resolve({})
    assert all("pomona" in str(folder) and folder.is_absolute() for folder in (home.models, home.cache, home.run))
