#!/usr/bin/env bash
# Shows that the core works where the wings are not, in build/core, a copy of the checkout without them: each of its
# modules is imported, all its tests are collected, and those in SELECTION run. The suite runs all of them, beside the
# wings: what only a checkout without them can show is that nothing misses them. Arguments go to pytest instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wings='emulation/(simulator|learning|experiments)|deploy'
# One part of each room, and all that reads entry points, where wings plug in: commands, policies, drivers, back ends.
SELECTION=(
    agents/test_{leases,network_environment,permitted}.py
    agents/training/test_ring.py
    cli/test_{conformance,lab,main,ocs_direct,rendering}.py
    cli/dashboard/test_picture.py
    cli/job/test_job_submit.py
    controller/test_{operations,service}.py
    controller/changes/test_transaction.py
    controller/circuits/test_{registry,transcripts}.py
    controller/discovery/test_wiring.py
    controller/jobs/test_{lab_policies,scheduler}.py
    controller/metrics/test_what_happens.py
    controller/packet_switches/openflow/test_flow_sync.py
    controller/policies/test_{placements,registry}.py
    controller/prediction/test_network.py
    controller/timeseries/test_series_store.py
    emulation/fabric/test_plan.py
    emulation/lab/test_gpus.py
    emulation/light/test_emulated_light.py
    emulation/optical/test_tl1_scpi_devices.py
    emulation/servers/test_keys.py
    test_golden.py
    test_walls.py
    testbed/jobfile/test_jobfile.py
    testbed/labfile/test_labfile.py
    testbed/test_lab.py
)
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
"$python" - <<'IMPORT'
import pkgutil
import sys
from importlib import import_module

import patchlight

PROGRAMS = ("__main__", "openflow.speaker")  # the speaker patches what it runs in
for module in pkgutil.walk_packages(patchlight.__path__, "patchlight."):
    if not any(name in module.name for name in PROGRAMS):
        import_module(module.name)
print(sum(name.startswith("patchlight.") for name in sys.modules), "modules of the core import without the wings")
IMPORT
pytest=("$python" -m pytest -p no:cacheprovider --ignore=tests/test_lock.py)
# Collected once, and the bytecode written for the processes that run some of them.
env -u PYTHONDONTWRITEBYTECODE "${pytest[@]}" --collect-only --quiet | tail -n 1
[ $# -gt 0 ] || set -- --quiet --numprocesses=2 "${SELECTION[@]/#/tests/}"
"${pytest[@]}" -m "not root and not ovs and not docker and not prometheus and not browser and not wings" "$@"
