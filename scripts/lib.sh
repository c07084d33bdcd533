# Sourced by the scripts beside it: the environment in .venv, and steps that say how long they took.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

_HEARTBEAT_PID=""

_end_heartbeat() {
    if [ -n "$_HEARTBEAT_PID" ]; then
        kill "$_HEARTBEAT_PID" 2>/dev/null || true
        wait "$_HEARTBEAT_PID" 2>/dev/null || true
        _HEARTBEAT_PID=""
    fi
}
trap _end_heartbeat EXIT

# step NAME COMMAND...: run it, say that it goes on every ten seconds, and how long it took.
step() {
    local name="$1" began="$SECONDS" code=0
    shift
    echo "== $name"
    (while sleep 10; do echo "   ... $name: $((SECONDS - began)) s so far"; done) >&2 &
    _HEARTBEAT_PID=$!
    "$@" || code=$?
    _end_heartbeat
    if [ "$code" -ne 0 ]; then
        echo "== $name FAILED after $((SECONDS - began)) s (exit code $code)" >&2
        exit "$code"
    fi
    echo "== $name: done in $((SECONDS - began)) s"
}

_find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "no Python 3.11 or newer found; name one with PYTHON=/path/to/python" >&2
    return 1
}

_install() {
    local python
    python="$(_find_python)"
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/python -m pip --disable-pip-version-check --quiet install \
        --require-hashes --only-binary :all: -r requirements.lock
    # The build backend is in the lock file too, so nothing comes in without a known hash.
    .venv/bin/python -m pip --disable-pip-version-check --quiet install \
        --no-deps --no-build-isolation --editable .
}

# Make .venv from the lock file; nothing happens where that is done already.
make_env() {
    local stamp=.venv/.installed wanted
    wanted="$(cat requirements.lock pyproject.toml | sha256sum)"
    if [ -x .venv/bin/ramrack ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    step "install into .venv (the first time takes a minute or two)" _install
    echo "$wanted" >"$stamp"
}
