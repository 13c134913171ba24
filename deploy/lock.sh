#!/usr/bin/env bash
# Writes deploy/lock.txt: the exact versions and hashes that deploy/bootstrap.sh installs with
# CPython 3.11 on x86-64 Linux. Run it after a change of the dependencies in setup.cfg. Needs uv.
#
#   deploy/lock.sh             the newest versions that the lower bounds allow
#   deploy/lock.sh NAME…       new versions of these packages only
#
# PyTorch is left out, as are the packages that only it needs: its build depends on the machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

LOCK=deploy/lock.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'torch ; python_version < "3"' >"$work/no-torch"

# A section for each extra; a package is in the first one that needs it.
sections=(dashboard ryu test docs learn ray release)

compile() {
    local output=$1 extra words=()
    shift
    for extra in "$@"; do words+=(--extra "$extra"); done
    uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --generate-hashes \
        --python-platform x86_64-manylinux_2_28 --build-constraint deploy/ryu-constraint.txt \
        --override "$work/no-torch" "${words[@]}" "${upgrade[@]}" -o "$output" setup.cfg
}

upgrade=(--upgrade)
if [ $# -gt 0 ]; then
    grep -v '^# ---' $LOCK >"$work/all"
    upgrade=()
    for name in "$@"; do upgrade+=(--upgrade-package "$name"); done
fi
compile "$work/all" "${sections[@]}"
upgrade=(--constraint "$work/pins")
sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' "$work/all" >"$work/pins"

# What Ryu's build needs, which is older than what everything else does with.
echo 'setuptools <67.3
wheel
pbr' >"$work/build.in"
{
    echo '# Written by deploy/lock.sh. Versions and hashes for CPython 3.11 on x86-64 Linux.'
    echo '# --- build'
    uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --generate-hashes \
        "$work/build.in"
    for section in "${sections[@]}"; do
        compile "$work/part" "$section"
        echo "# --- $section"
        # Whole entries, with their hashes, that no section before this one has.
        awk -v seen="$work/seen" 'BEGIN { while ((getline name <seen) > 0) had[name] = 1 }
            /^[^ ]/ { take = !($1 in had); if (take) print $1 >>seen } take' "$work/part"
    done
} >"$work/lock"
mv "$work/lock" $LOCK
echo "lock.sh: wrote $LOCK: $(grep -c '==' $LOCK) packages"
