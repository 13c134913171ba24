#!/usr/bin/env bash
# Makes the worker image (Python and NumPy) without a registry: a root file system by mmdebstrap,
# imported into the Docker engine of $DOCKER_HOST (default: the one docker-engine.sh finds).
# Does nothing if the image is there.
#
#   deploy/worker-image.sh [--rebuild] [IMAGE]      default IMAGE: patchlight-worker:latest
#
# Where a registry can be reached: docker build -t patchlight-worker -f deploy/Dockerfile .
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

CACHE=${PATCHLIGHT_CACHE:-/var/cache/patchlight}
PACKAGES=python3-minimal,python3-numpy
RECIPE=1 # to be raised when what is in the root file system changes

fail() { printf 'worker-image: %s\n' "$*" >&2; exit 1; }
say() { printf 'worker-image: %s\n' "$*" >&2; }

rebuild=false image=patchlight-worker:latest
for argument in "$@"; do
    case $argument in
        --rebuild) rebuild=true ;;
        -*) fail "unknown option $argument (known: --rebuild)" ;;
        *) image=$argument ;;
    esac
done
case $image in *:*) ;; *) image=$image:latest ;; esac

# The engine's own API, because Debian has the docker command in a package apart.
#   engine has IMAGE RECIPE | engine import IMAGE RECIPE TAR
engine() {
    python3 - "$DOCKER_HOST" "$@" <<'PY'
import http.client, json, socket, sys
from urllib.parse import quote, urlencode

url, action, image, recipe, *rest = sys.argv[1:]
scheme, _, where = url.partition("://")
if scheme == "unix":
    connection = http.client.HTTPConnection("localhost", timeout=300)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(where)
else:
    connection = http.client.HTTPConnection(where, timeout=300)

if action == "has":
    connection.request("GET", f"/images/{quote(image, safe='')}/json")
    answer = connection.getresponse()
    labels = json.loads(answer.read())["Config"]["Labels"] if answer.status == 200 else None
    sys.exit(0 if labels and labels.get("patchlight.recipe") == recipe else 1)

repository, _, tag = image.rpartition(":")
changes = [f"LABEL patchlight.image=worker patchlight.recipe={recipe}", "ENV LANG=C.UTF-8"]
query = urlencode(
    {"fromSrc": "-", "repo": repository, "tag": tag, "changes": changes}, doseq=True
)
with open(rest[0], "rb") as tar:
    connection.request("POST", f"/images/create?{query}", tar, encode_chunked=True,
                       headers={"Content-Type": "application/x-tar"})
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
errors = [line for line in text.splitlines() if '"error"' in line]
if answer.status != 200 or errors:
    sys.exit(f"the Docker engine refused the image: {answer.status} {' '.join(errors) or text}")
PY
}

found=$(./docker-engine.sh status 2>/dev/null) ||
    fail "no Docker engine answers; start one: deploy/docker-engine.sh start"
[ "${DOCKER_HOST:-$found}" = "$found" ] || fail "no Docker engine answers at $DOCKER_HOST"
DOCKER_HOST=$found
if ! $rebuild && engine has "$image" "$RECIPE"; then exit 0; fi

[ "$(id -u)" = 0 ] || fail "making the root file system needs root: sudo $0"
command -v mmdebstrap >/dev/null ||
    fail "mmdebstrap is not installed: apt-get install mmdebstrap"
# shellcheck source=/dev/null
. /etc/os-release
suite=${PATCHLIGHT_SUITE:-${VERSION_CODENAME:?cannot tell which Debian or Ubuntu this is; set PATCHLIGHT_SUITE}}
tar=$CACHE/worker-$suite-$(dpkg --print-architecture)-$RECIPE.tar

if $rebuild || ! [ -s "$tar" ]; then
    say "making the root file system of the workers ($suite; some 20 s)"
    mkdir -p "$CACHE"
    part=$(mktemp -d "$CACHE/part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    mmdebstrap --quiet --variant=minbase --include="$PACKAGES" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        "$suite" "$part/worker.tar" ${PATCHLIGHT_MIRROR:+"$PATCHLIGHT_MIRROR"} >&2 ||
        fail "mmdebstrap could not make it (see above); PATCHLIGHT_MIRROR=URL chooses a mirror"
    mv "$part/worker.tar" "$tar"
fi
say "importing it as $image"
engine import "$image" "$RECIPE" "$tar"
engine has "$image" "$RECIPE" || fail "the engine took the image, and yet does not have it"
