#!/usr/bin/env bash
# Makes the worker image (Python and NumPy) without a registry: a root file system by mmdebstrap,
# imported into the Docker engine of $DOCKER_HOST (default: the one docker-engine.sh finds).
# Does nothing if the image is there.
#
#   deploy/worker-image.sh [--rebuild] [IMAGE]      default IMAGE: patchlight-worker:latest
#
# Where a registry can be reached: docker build -t patchlight-worker -f deploy/Dockerfile .
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")"

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

engine() { python3 -I ../testbed/linux/docker_engine.py "$@"; }

url=$(bash docker-engine.sh status 2>/dev/null) ||
    fail "no Docker engine answers; start one: sudo bash $PWD/docker-engine.sh start"
[ "${DOCKER_HOST:-$url}" = "$url" ] || fail "no Docker engine answers at $DOCKER_HOST"
if ! $rebuild && engine has "$url" "$image" "$RECIPE"; then exit 0; fi

[ "$(id -u)" = 0 ] || fail "making the root file system needs root: sudo bash $PWD/worker-image.sh"
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
engine import "$url" "$image" "$RECIPE" "$tar"
engine has "$url" "$image" "$RECIPE" || fail "the engine took the image, and yet does not have it"
