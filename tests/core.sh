#!/usr/bin/env bash
# Shows that the core works where the wings are not, in build/core, a copy of the checkout without them: each of its
# modules is imported, all its tests are collected, and those in SELECTION run. The suite runs all of them, beside the
# wings: what only a checkout without them can show is that nothing misses them. Arguments go to pytest instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wings='emulation/(simulator|learning|experiments)|deploy'
# One part of each room, and all that reads entry points, where wings plug in: commands, policies, drivers, back ends.
SELECTION=(
    tests/agents/test_leases.py
    tests/agents/test_network_environment.py
    tests/agents/test_permitted.py
    tests/agents/training/test_ring.py
    tests/cli/test_lab.py
    tests/cli/test_main.py
    tests/cli/test_ocs_direct.py
    tests/cli/test_rendering.py
    tests/cli/dashboard/test_picture.py
    tests/cli/job/test_job_submit.py
    tests/controller/test_operations.py
    tests/controller/test_service.py
    tests/controller/changes/test_transaction.py
    tests/controller/circuits/test_registry.py
    tests/controller/circuits/test_transcripts.py
    tests/controller/discovery/test_wiring.py
    tests/controller/jobs/test_lab_policies.py
    tests/controller/jobs/test_scheduler.py
    tests/controller/metrics/test_what_happens.py
    tests/controller/packet_switches/openflow/test_flow_sync.py
    tests/controller/policies/test_placements.py
    tests/controller/policies/test_registry.py
    tests/controller/prediction/test_network.py
    tests/controller/timeseries/test_series_store.py
    tests/emulation/fabric/test_plan.py
    tests/emulation/lab/test_gpus.py
    tests/emulation/light/test_emulated_light.py
    tests/emulation/optical/test_tl1_scpi_devices.py
    tests/emulation/servers/test_keys.py
    tests/test_golden.py
    tests/test_walls.py
    tests/testbed/jobfile/test_jobfile.py
    tests/testbed/labfile/test_labfile.py
    tests/testbed/test_lab.py
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
[ $# -gt 0 ] || set -- --quiet --numprocesses=2 "${SELECTION[@]}"
"${pytest[@]}" -m "not root and not ovs and not docker and not prometheus and not browser and not wings" "$@"
