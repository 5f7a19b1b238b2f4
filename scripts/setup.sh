#!/bin/sh
# Makes or mends .venv: finds a Python, creates the environment, installs Pomona with pinned versions.
# Runs from the repository root (`make setup`). PYTHON names an interpreter to use instead of searching.
set -eu

venv=.venv
oldest='3.11'

fail() {
    echo "pomona: $1" >&2
    exit 1
}

# Prints "3.12 Darwin arm64", or nothing where the command is missing or a shim without a Python behind it.
describe() {
    "$1" -c 'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.system(), platform.machine())' 2>/dev/null || true
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    seen=''
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        found=$(describe "$candidate")
        [ -n "$found" ] || continue
        if new_enough "$candidate"; then
            case $found in
            *Darwin\ x86_64) seen="$seen $candidate (an Intel build; MLX needs an arm64 Python)" ;;
            *) python=$candidate && return ;;
            esac
        else
            seen="$seen $candidate (${found%% *})"
        fi
    done
    fail "Python $oldest or newer is needed; found:${seen:- none}. Install it (macOS: brew install python@3.13; Debian: apt install python3 python3-venv), or name it: make setup PYTHON=/path/to/python3"
}

# An environment that an interrupted run or a removed Python left unusable is made anew.
if ! { new_enough "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
    find_python
    echo "pomona: creating $venv with $python ($(describe "$python"))"
    rm -rf "$venv"
    "$python" -m venv "$venv" || fail "$python could not make a virtual environment; on Debian and Ubuntu: apt install python3-venv"
fi

echo "pomona: installing into $venv (some 400 MB to download the first time, 1.5 GB on disk)"
"$venv/bin/python" -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]' ||
    fail "the installation failed (see above); mend that and run make again, it goes on where it stopped"
