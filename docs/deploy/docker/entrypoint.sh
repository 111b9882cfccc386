#!/bin/sh
# The variables that containers of workers are started with, as `formation` takes them:
#   WORKER_TYPE      auto, gpu, cpu, storage or edge: what services the worker takes on
#   COORDINATOR_URL  http://HOST:PORT/#TOKEN of a gateway, or an invite: the network to join
# FORMATION_JOIN wins over COORDINATOR_URL, and a command's own options over both.
set -eu
: "${FORMATION_JOIN:=${COORDINATOR_URL:-}}"
if [ -n "$FORMATION_JOIN" ]; then
    export FORMATION_JOIN
else
    unset FORMATION_JOIN
fi
if [ "${1:-}" = worker ] && [ -n "${WORKER_TYPE:-}" ]; then
    shift
    set -- worker --serve "$WORKER_TYPE" "$@"
fi
exec formation "$@"
