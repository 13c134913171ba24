#!/usr/bin/env bash
# Runs the core's tests in build/core, a copy of the checkout without the wings: what they bring
# has to be missed by nothing else. Tests that import a wing are left out, and so are those that
# need root, Open vSwitch, Docker, Prometheus or a browser. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wings='emulation/(simulator|learning|experiments)|deploy'
copy=$PWD/build/core python=$PWD/.venv/bin/python
rm -rf build/core
mkdir -p build/core
git ls-files --cached --others --exclude-standard |
    grep -vE "^(tests/)?($wings)/" | tar --create --files-from=- | tar --extract --directory=build/core
# The wings' entry points are not there either.
metadata=$(echo .venv/lib/python3*/site-packages/patchlight-*.dist-info)
cp -r "$metadata" build/core/
modules=${wings//\//.}
sed -i -E "/= patchlight\.($modules)[.:]/d" "build/core/${metadata##*/}/entry_points.txt"
cd build/core
export PYTHONPATH=$copy
# What the tests import is compiled once, not by each of the processes that run them.
compiled() { env -u PYTHONDONTWRITEBYTECODE "$python" "$@" >/dev/null || true; }
compiled -m compileall -q agents controller emulation patchlight testbed
compiled -m pytest -p no:cacheprovider --collect-only --quiet --ignore=tests/test_lock.py
"$python" -m pytest -p no:cacheprovider --ignore=tests/test_lock.py \
    -m "not root and not ovs and not docker and not prometheus and not browser and not wings" "$@"
