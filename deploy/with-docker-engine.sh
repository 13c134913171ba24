#!/usr/bin/env bash
# Runs a command with a Docker engine that answers and the worker image in it, and stops the
# engine afterwards if it was started for this, however the command ends. Where there can be no
# engine the command runs all the same: Patchlight then runs workers as plain processes.
#
#   deploy/with-docker-engine.sh COMMAND [ARGUMENT...]
set -uo pipefail
deploy=$(dirname "${BASH_SOURCE[0]}")

engine() { bash "$deploy/docker-engine.sh" "$@"; }
stop() { engine stop >&2; }

if url=$(engine status 2>/dev/null); then
    : # one that others started, and will stop
elif url=$(engine start); then
    trap stop EXIT
    # Ctrl-C goes to the command too, and this shell waits for it before it stops the engine.
    # A handler that does nothing, because an ignored signal would be ignored by the command.
    trap : INT
else
    echo "with-docker-engine: no Docker engine can run here (see above)" >&2
fi
if [ -n "$url" ]; then
    export DOCKER_HOST=$url
    bash "$deploy/worker-image.sh" >&2 || echo "with-docker-engine: no worker image (see above)" >&2
fi
"$@"
