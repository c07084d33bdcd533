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

# _install_beside ENV REQUIREMENT...: an environment that has all of .venv, and these too.
_install_beside() {
    local env="$1" purelib
    shift
    purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    .venv/bin/python -m venv --without-pip --clear "$env"
    { .venv/bin/python -c "$purelib" && pwd; } >"$("$env/bin/python" -c "$purelib")/base.pth"
    printf '#!/bin/sh\nexec "%s/bin/python" -m serving.cli "$@"\n' "$PWD/$env" >"$env/bin/ramrack"
    chmod +x "$env/bin/ramrack"
    .venv/bin/python -m pip --python "$env/bin/python" --disable-pip-version-check --quiet \
        install "$@"
}

# make_framework_env NAME ENV REQUIREMENT...: the same, unless it is there already.
make_framework_env() {
    local name="$1" env="$2" wanted
    shift 2
    wanted="$* $(cat .venv/.installed)"
    if [ "$(cat "$env/.installed" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    step "install $name into $env (once; a minute or more)" _install_beside "$env" "$@"
    echo "$wanted" >"$env/.installed"
}

# The build for CPUs, by its full version: any other is gigabytes larger.
_TORCH="torch==2.13.0+cpu"
_TENSORFLOW="tensorflow-cpu==2.21.0"

make_torch_env() {
    make_framework_env PyTorch .venv-torch "$_TORCH" onnxscript==0.7.2 \
        "polars>=1.30" "optuna>=4.4"  # for the recipes
}

# Whether a package index here has that build.
has_torch_build() {
    .venv/bin/python -m pip --disable-pip-version-check --quiet install --dry-run --no-deps \
        "$_TORCH" >/dev/null 2>&1
}

make_tensorflow_env() {
    make_framework_env TensorFlow .venv-tf "$_TENSORFLOW" tf2onnx==1.17.0
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
