#!/bin/sh
# Renews constraints.txt: the newest versions that pyproject.toml allows, as a fresh environment resolves them.
# Runs from the repository root (`make lock`); run the whole of `make check` with the result before committing it.
set -eu

python=${PYTHON:-.venv/bin/python}
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT INT TERM

"$python" -m venv "$fresh/venv"
"$fresh/venv/bin/python" -m pip install --disable-pip-version-check -e '.[dev]'
{
    sed -n '/^#/p' constraints.txt
    "$fresh/venv/bin/python" -m pip freeze --exclude pomona --exclude-editable
} >"$fresh/constraints.txt"
cp "$fresh/constraints.txt" constraints.txt
