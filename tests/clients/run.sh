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

has() { command -v "$1" >/dev/null || { echo "$2: skipped, there is no $1" >&2; false; }; }

servers=()
trap 'kill "${servers[@]}" 2>/dev/null || true' EXIT
serve() { # DIRECTORY PORT
    "$program" serve --model-dir "$1" --port "$2" 2>/dev/null &
    servers+=($!)
    until curl -sf "http://127.0.0.1:$2/ready" >/dev/null; do sleep 0.2; kill -0 $!; done
}

clients() { # URL
    "$python" "$here/clients.py" "$1/v1"
    if has node client.mjs && has npm client.mjs; then
        cp "$here/package.json" "$packages/node"
        (cd "$packages/node" && npm install --silent --no-audit --no-fund)
        (cd "$packages/node" && node "$here/client.mjs" "$1/v1")
    fi
}

serve "$crate" "$port"
clients "$url"
# The same model with a chat template that supports tools.
"$python" "$here/add_tool_template.py" "$crate" "$packages/tools"
serve "$packages/tools" $((port + 1))
clients "http://127.0.0.1:$((port + 1))"
"$python" "$here/harness.py" "$url/v1" "$crate" "$program"
if has chromium page.py; then
    "$python" "$here/page.py" "$url"
    "$python" "$here/scripted_page.py"
fi
"$python" "$here/soak.py" "$url" "$minutes" 64 "${servers[0]}"
for proxy in haproxy nginx; do
    if has "$proxy" replicas.py; then "$python" "$here/replicas.py" "$program" "$proxy"; fi
done
