#!/bin/bash
# Runs the tests of untorn-ship on servers that speak S3: versitygw, also behind toxiproxy, which delays and cuts
# answers, and moto. `scripts/setup.sh ship` installs them.
# Keys are drawn here, and are in the environment only.
set -euo pipefail
cd "$(dirname "$0")/.."
servers=${UNTORN_SHIP_SERVERS:-target/ship-servers}
work=$(mktemp -d)
pids=()
cleanup() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT
export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION=us-east-1
AWS_ACCESS_KEY_ID=untorn$(od -An -N6 -tx1 /dev/urandom | tr -d ' \n')
AWS_SECRET_ACCESS_KEY=$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
answers() {
    for _ in $(seq 100); do
        curl -s -o /dev/null "http://127.0.0.1:$1/" && return
        sleep 0.1
    done
    echo "ship-tests: no server answers at port $1" >&2
    exit 1
}
tests() {
    echo "== $1"
    UNTORN_SHIP_URL=$2 AWS_ENDPOINT_URL=$3 cargo test -p untorn-ship --test object_stores -- --nocapture
}

port=$(free_port)
mkdir -p "$work/objects/untorn"
ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY \
    "$servers/versitygw" --port "127.0.0.1:$port" posix "$work/objects" >"$work/versitygw.log" 2>&1 &
pids+=($!)
answers "$port"
tests versitygw s3://untorn/tests "http://127.0.0.1:$port"

control=$(free_port)
disturbed=$(free_port)
"$servers/toxiproxy" -host 127.0.0.1 -port "$control" >"$work/toxiproxy.log" 2>&1 &
pids+=($!)
answers "$control"
# Tells toxiproxy something: METHOD, path and a body.
tell() { curl -s -o /dev/null -X "$1" -d "$3" "http://127.0.0.1:$control/proxies$2"; }
tell POST "" "{\"name\":\"s3\",\"listen\":\"127.0.0.1:$disturbed\",\"upstream\":\"127.0.0.1:$port\"}"
tell POST /s3/toxics '{"type":"latency","attributes":{"latency":10,"jitter":10}}'
# Requests and answers are lost again and again: by a reset, in their middle, or without a word.
disturb() {
    while sleep 0.5; do
        for toxic in '"reset_peer","stream":"downstream"' '"reset_peer","stream":"upstream"' \
            '"limit_data","attributes":{"bytes":50}' '"timeout","attributes":{"timeout":100}'; do
            tell POST /s3/toxics "{\"name\":\"now\",\"type\":$toxic}"
            sleep 0.2
            tell DELETE /s3/toxics/now ''
            sleep 0.4
        done
    done
}
disturb &
pids+=($!)
echo "== versitygw behind toxiproxy"
UNTORN_SHIP_DISTURBED=1 UNTORN_SHIP_URL=s3://untorn/disturbed AWS_ENDPOINT_URL=http://127.0.0.1:$disturbed \
    cargo test -p untorn-ship --test kills kills_of_owner_and_shipper -- --nocapture

if [ -x "$servers/python/bin/moto_server" ]; then
    port=$(free_port)
    "$servers/python/bin/moto_server" -H 127.0.0.1 -p "$port" >"$work/moto.log" 2>&1 &
    pids+=($!)
    answers "$port"
    curl -s -o /dev/null -X PUT "http://127.0.0.1:$port/untorn"
    tests moto s3://untorn/tests "http://127.0.0.1:$port"
else
    echo "ship-tests: skipped: moto is not installed (scripts/setup.sh ship)"
fi
