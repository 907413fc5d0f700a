#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A tiered master and its tiered replica on this host, both from the redis.conf next to this script
# with smaller sizes: data of four times the DRAM of each, a full sync, later writes, every value
# read from the replica, equal digests. All files are in one directory, which is removed at the end,
# also after Ctrl-C.
#   replication.sh [MODULE [CLIENT [DRAM_MIB]]]     default: the installed module, ./client
#                                                   (client.c), 64
# Exit code 77: this host or user cannot run it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
module=$(realpath -m "${1:-/usr/lib/x86_64-linux-gnu/redis/modules/liblunar-redis.so}")
client=$(realpath -m "${2:-$here/client}")
dram=${3:-64}
wait_s_max=120

command -v redis-server >/dev/null || { echo 'skip: redis-server: not installed'; exit 77; }
for file in "$module" "$client"; do
  [ -r "$file" ] || { echo "replication.sh: $file is not there" >&2; exit 1; }
done
directory=$(mktemp -d "${TMPDIR:-/var/tmp}/lunar-replication-XXXXXX")
declare -A pid port
cleanup() {
  trap '' INT TERM
  local servers
  # Not from pid[], because the signal may come before the last entry is written.
  mapfile -t servers < <(jobs -p)
  [ ${#servers[@]} = 0 ] || { kill -KILL "${servers[@]}"; wait; } 2>/dev/null || true
  rm -rf "$directory"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ask NAME COMMAND...: prints the reply of that server.
ask() { redis-cli -p "${port[$1]}" -e "${@:2}" | tr -d '\r'; }
field() { ask "$1" info "$2" | sed -n "s/^$3://p"; }
fail() {
  echo "replication.sh: $*" >&2
  tail -n 5 "$directory"/*/log >&2
  exit 1
}
until_true() {   # until_true WHAT COMMAND...
  local end=$((SECONDS + wait_s_max))
  until "${@:2}"; do
    [ $SECONDS -lt $end ] || fail "$1 does not come"
    sleep 0.1
  done
}
answers() { [ "$(ask "$1" ping 2>/dev/null)" = PONG ]; }
start() {   # start NAME ARGUMENT...; another port is tried where this one is taken
  local name=$1
  mkdir "$directory/$name"
  sed "s|^loadmodule .*|loadmodule $module dram ${dram}mb lun $directory size $((dram * 24))mb|" \
    "$here/redis.conf" >"$directory/$name/redis.conf"
  for _ in 1 2 3 4 5; do
    port[$name]=$((20000 + RANDOM % 10000))
    redis-server "$directory/$name/redis.conf" --port "${port[$name]}" --bind 127.0.0.1 \
      --dir "$directory/$name" --logfile "$directory/$name/log" \
      --enable-debug-command local "${@:2}" </dev/null >"$directory/$name/errors" 2>&1 &
    pid[$name]=$!
    while kill -0 "${pid[$name]}" 2>/dev/null; do
      ! answers "$name" || return 0
      sleep 0.1
    done
    unset "pid[$name]"
    grep -q 'already in use' "$directory/$name/log" || break
  done
  if grep 'userfaultfd: not permitted' "$directory/$name/log" >"$directory/refusal"; then
    echo "skip: userfaultfd: $(tail -n 1 "$directory/refusal")"
    exit 77
  fi
  cat "$directory/$name/errors" >&2
  fail "the $name does not start"
}
linked() { [ "$(field replica replication master_link_status)" = up ]; }
has_last() { [ "$(ask replica get later:1000)" = 1000 ]; }
same_digest() { [ "$(ask master debug digest)" = "$(ask replica debug digest)" ]; }

start master --repl-diskless-sync-delay 0   # no second replica to wait for
"$client" "${port[master]}" $((4 * dram)) fill | head -n 1
began=$SECONDS
start replica --replicaof "127.0.0.1 ${port[master]}"
until_true 'the link of the replica' linked
echo "full sync in $((SECONDS - began)) s"
"$client" "${port[replica]}" $((4 * dram)) check | head -n 1

for i in $(seq 1000); do echo "SET later:$i $i"; done | redis-cli -p "${port[master]}" --pipe |
  tail -n 1
# (WAIT waits only for writes of its own connection.)
until_true 'the last write at the replica' has_last
same_digest || fail 'digests differ'
[ "$(field master stats sync_full)" = 1 ] || fail "full syncs: $(field master stats sync_full)"

printf '%-8s %12s %14s %10s %10s\n' server 'DRAM budget' 'resident peak' 'cold' 'evicted'
for name in master replica; do
  budget=$(field "$name" lunar lunar_dram_budget_bytes) \
    peak=$(field "$name" lunar lunar_resident_peak_bytes)
  cold=$(field "$name" lunar lunar_cold_bytes) evicted=$(field "$name" lunar lunar_evicted_pages)
  printf '%-8s %8d MiB %10d MiB %6d MiB %6d MiB\n' "$name" $((budget >> 20)) $((peak >> 20)) \
    $((cold >> 20)) $((evicted >> 8))
  [ "$peak" -le "$budget" ] || fail "the $name passed its budget"
  [ $((cold >> 20)) -ge $((2 * dram)) ] || fail "the $name holds too much in DRAM: is it tiered?"
done
echo 'equal: every value is on the replica'
