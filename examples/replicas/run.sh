#!/usr/bin/env bash
# Two servers of one model, and HAProxy or nginx before them: run.sh path/to/program [haproxy|nginx]
# Ctrl-C ends all three.
set -euo pipefail
program=${1:?the program of a generated crate, such as target/release/fable}
proxy=${2:-haproxy}
here=$(cd "$(dirname "$0")" && pwd)
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
for port in 8091 8092; do
    "$program" serve --port "$port" &
done
case $proxy in
haproxy) haproxy -f "$here/haproxy.cfg" & ;;
nginx) nginx -p "$(mktemp -d)" -c "$here/nginx.conf" & ;;
*) echo "haproxy or nginx, not $proxy" >&2; exit 2 ;;
esac
# Until the proxy ends. The proxy handles a server that ends.
wait $!
