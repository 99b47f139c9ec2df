#!/usr/bin/env bash
# Make .venv with a Python that is new enough. Usage: ensure-venv.sh [FOLDER]
# PYTHON names the interpreter; without it the first fitting one is taken.
set -eu

here=$(dirname "$0")
venv=${1:-.venv}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "Python 3.11 or newer is needed: none found, set PYTHON=/path/to/it" >&2
    return 1
}

has_pip() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

if is_new_enough "$venv/bin/python" && "$venv/bin/python" -c 'import pip' 2>/dev/null
then
    exit 0
fi

python=$(find_python)
if ! has_pip "$python"; then
    # Debian and Ubuntu keep this half of the standard library in a package of its own.
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$here/apt-install.sh" "python -m venv" "python$version-venv"
    if ! has_pip "$python"; then
        echo "$python still has no ensurepip: set PYTHON to another one" >&2
        exit 1
    fi
fi
"$python" -m venv --clear "$venv"
