#!/usr/bin/env bash
# Makes the image of workers (Python and NumPy), or of the controller, without a registry: a root file
# system by mmdebstrap, imported into the Docker engine of $DOCKER_HOST (default: the one docker-engine.sh finds).
# Does nothing if the image is there.
#
#   deploy/worker-image.sh [--rebuild] [IMAGE]           default IMAGE: patchlight-worker:latest
#   deploy/worker-image.sh --torch [--rebuild] [IMAGE]   with PyTorch: patchlight-worker-torch:latest
#   deploy/worker-image.sh --mpi [--rebuild] [IMAGE]     with Open MPI, UCX and mpi4py: patchlight-worker-mpi:latest
#   deploy/worker-image.sh --controller [IMAGE]          this Patchlight: patchlight-controller:latest
#   deploy/worker-image.sh --save [--torch|--mpi] [--rebuild]  as a file for servers, and prints which: no engine
#                                                        is needed, see patchlight deploy push --image-file
#
# PyTorch is its build for processors, from $PATCHLIGHT_TORCH_INDEX (default: PyTorch's own index).
# One with CUDA: PATCHLIGHT_TORCH_INDEX=https://download.pytorch.org/whl/cu126, or the suffix that
# fits the servers' driver.
# Where a registry can be reached: deploy/Dockerfile.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")"

CACHE=${PATCHLIGHT_CACHE:-/var/cache/patchlight}
PACKAGES=python3-minimal,python3-numpy
RECIPE=1 # to be raised when what is in the root file system changes

fail() { printf 'worker-image: %s\n' "$*" >&2; exit 1; }
say() { printf 'worker-image: %s\n' "$*" >&2; }

rebuild=false torch=false mpi=false controller=false save=false image=
for argument in "$@"; do
    case $argument in
        --rebuild) rebuild=true ;;
        --torch) torch=true ;;
        --controller) controller=true ;;
        --mpi) mpi=true ;;
        --save) save=true ;;
        -*) fail "unknown option $argument (known: --controller, --mpi, --rebuild, --save, --torch)" ;;
        *) image=$argument ;;
    esac
done
kind=worker
# Computation graphs, which a model's training reads, need a YAML reader.
if $torch; then kind=worker-torch RECIPE=2-torch PACKAGES=$PACKAGES,python3-yaml; fi
if $mpi; then kind=worker-mpi RECIPE=1-mpi PACKAGES=$PACKAGES,openmpi-bin,python3-mpi4py,ibverbs-providers; fi
# What it has changes with every change of Patchlight.
if $controller; then kind=controller PACKAGES=python3 rebuild=true; fi
! $save || [ -z "$image" ] || fail "--save takes no IMAGE: it is patchlight-$kind:latest"
image=${image:-patchlight-$kind:latest}
case $image in *:*) ;; *) image=$image:latest ;; esac

# Into a folder that the image's Python looks in: with pip of this machine, because that of the
# image would be one more package in it.
fetch_torch() {
    local python=../.venv/bin/python
    local for_image=(--python-version "$PYTHON" --only-binary=:all:)
    [ -x $python ] || python=python3
    $python -m pip --version >/dev/null 2>&1 || fail "no pip to fetch PyTorch with: apt-get install python3-pip"
    say "fetching PyTorch ($(cat learn-constraint.txt); some 200 MB for processors, gigabytes with CUDA)"
    # PyTorch alone from its index; its build is preferred then to the one for CUDA that PyPI has.
    $python -m pip download --quiet --retries 1 --no-deps --dest "$1.wheels" "${for_image[@]}" \
        --extra-index-url "${PATCHLIGHT_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" \
        "$(cat learn-constraint.txt)" >&2 &&
        $python -m pip install --quiet --retries 1 --target "$1" "${for_image[@]}" \
            "$1.wheels"/torch-*.whl >&2 || fail "pip could not fetch PyTorch (see above)"
    rm -rf "${1:?}/bin" "$1/torch/include" "$1"/numpy*
}

# Patchlight and what it requires, as they are installed in .venv.
fetch_controller() {
    ../.venv/bin/patchlight deploy bundle --controller --python "$PYTHON" --output "$1.bundle" >&2
    tar --extract --file "$1.bundle" --one-top-level="$1.files"
    for wheel in "$1.files"/files/*.whl; do python3 -m zipfile --extract "$wheel" "$1"; done
    printf '#!/usr/bin/python3\nfrom patchlight.cli.main import main\n\nmain()\n' >"$1/patchlight.py"
}

has_image() { python3 -I ../testbed/linux/docker_engine.py has "$url" "$image" "$RECIPE"; }

# Makes the image of a root file system in the Docker engine.
import_image() {
    python3 - "$url" "$image" "$RECIPE" "$tar" <<'END'
import sys
from urllib.parse import urlencode

sys.path.insert(0, "../testbed/linux")
import docker_engine

url, image, recipe, tar = sys.argv[1:]
repository, _, tag = image.rpartition(":")
changes = [f"LABEL patchlight.recipe={recipe}", "ENV LANG=C.UTF-8"]
query = urlencode({"fromSrc": "-", "repo": repository, "tag": tag, "changes": changes}, doseq=True)
with open(tar, "rb") as archive:
    answer = docker_engine.ask("POST", f"/images/create?{query}", url, body=archive, timeout_s=300)
if answer.status != 200 or '"error"' in answer.text:
    sys.exit(f"the Docker engine refused the image: {answer.status} {answer.text}")
END
}

if ! $save; then
    url=$(bash docker-engine.sh status 2>/dev/null) ||
        fail "no Docker engine answers; start one: sudo bash $PWD/docker-engine.sh start"
    [ "${DOCKER_HOST:-$url}" = "$url" ] || fail "no Docker engine answers at $DOCKER_HOST"
    if ! $rebuild && has_image; then exit 0; fi
fi

[ "$(id -u)" = 0 ] || fail "making the root file system needs root: sudo bash $PWD/worker-image.sh"
# shellcheck source=/dev/null
. /etc/os-release
suite=${PATCHLIGHT_SUITE:-${VERSION_CODENAME:?cannot tell which Debian or Ubuntu this is; set PATCHLIGHT_SUITE}}
PYTHON=${PATCHLIGHT_PYTHON:-$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
MODULES=/usr/local/lib/python$PYTHON/dist-packages
tar=$CACHE/$kind-$suite-$(dpkg --print-architecture)-$RECIPE.tar

if $rebuild || ! [ -s "$tar" ]; then
    command -v mmdebstrap >/dev/null ||
        fail "mmdebstrap is not installed: apt-get install mmdebstrap"
    say "making the root file system of $image ($suite; some 20 s)"
    mkdir -p "$CACHE"
    part=$(mktemp -d "$CACHE/part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    hooks=("--customize-hook=mkdir -p \"\$1/$MODULES\"" "--customize-hook=sync-in $part/modules $MODULES")
    if $controller; then
        fetch_controller "$part/modules"
        hooks+=("--customize-hook=install \"\$1/$MODULES/patchlight.py\" \"\$1/usr/local/bin/patchlight\""
            "--customize-hook=rm \"\$1/$MODULES/patchlight.py\"; chroot \"\$1\" python3 -m compileall -qq -j 0 $MODULES || true")
    elif $torch; then
        fetch_torch "$part/modules"
    else
        hooks=()
    fi
    unshare --mount --propagation private mmdebstrap --quiet --variant=minbase --include="$PACKAGES" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        "${hooks[@]}" "$suite" "$part/worker.tar" ${PATCHLIGHT_MIRROR:+"$PATCHLIGHT_MIRROR"} >&2 ||
        fail "mmdebstrap could not make it (see above); PATCHLIGHT_MIRROR=URL chooses a mirror"
    mv "$part/worker.tar" "$tar"
fi
if $save; then
    file=${tar%.tar}.image.tar
    if ! [ "$file" -nt "$tar" ]; then
        say "packing it as $image"
        python3 -I image_file.py "$image" "$tar" "$file" "patchlight.recipe=$RECIPE" ||
            fail "packing it failed (see above)"
    fi
    echo "$file"
    exit 0
fi
say "importing it as $image"
import_image
has_image || fail "the engine took the image, and yet does not have it"
