#!/usr/bin/env bash
# Runs every client against a program: run.sh CRATE PROGRAM [minutes of soak]
# Packages go to target/clients.
set -euo pipefail
crate=$(cd "${1:?the directory of a generated crate}" && pwd)
program=$(realpath "${2:?the program of that crate}")
minutes=${3:-1}
here=$(cd "$(dirname "$0")" && pwd)
packages=$here/../../target/clients
port=8096
url=http://127.0.0.1:$port

mkdir -p "$packages/node"
test -x "$packages/python/bin/python" || python3 -m venv "$packages/python"
python=$packages/python/bin/python
"$python" -m pip install --quiet -r "$here/requirements.txt"

"$program" serve --model-dir "$crate" --port "$port" 2>/dev/null &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
until curl -sf "$url/ready" >/dev/null; do sleep 0.2; kill -0 "$server"; done

has() { command -v "$1" >/dev/null || { echo "$2: skipped, there is no $1" >&2; false; }; }

"$python" "$here/clients.py" "$url/v1"
if has node client.mjs && has npm client.mjs; then
    cp "$here/package.json" "$packages/node"
    (cd "$packages/node" && npm install --silent --no-audit --no-fund)
    (cd "$packages/node" && node "$here/client.mjs" "$url/v1")
fi
"$python" "$here/harness.py" "$url/v1" "$crate" "$program"
if has chromium page.py; then "$python" "$here/page.py" "$url"; fi
"$python" "$here/soak.py" "$url" "$minutes" 64 "$server"
for proxy in haproxy nginx; do
    if has "$proxy" replicas.py; then "$python" "$here/replicas.py" "$program" "$proxy"; fi
done
