#!/usr/bin/env bash
# Runs the tests marked `kernel` or `any_kernel` in a virtual machine with Debian's own kernel, which has netem,
# VLANs, RDMA and Open vSwitch's datapath. The machine sees this machine's files, read-only, and writes to memory.
# Where there can be no such machine, tests marked `kernel` run on this one's kernel and skip what it has not.
#
#   tests/in-vm.sh [PYTEST ARGUMENTS]     needs root, and QEMU; ends with the exit code of pytest
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MODULES='sch_netem 8021q macvlan rdma_rxe rdma_ucm openvswitch veth act_mirred cls_matchall sch_ingress sch_tbf
    igb igbvf virtio_net'
LIMIT_S=${PATCHLIGHT_VM_LIMIT_S:-1200} # a busy machine takes long to emulate a processor
END_MARK='in-vm: pytest ended with'

has_igb() { [[ $(qemu-system-x86_64 -device help) = *'"igb"'* ]]; } # since version 8
# This machine's kernel has to do, because of this.
run_here() {
    printf 'in-vm: %s: tests that need some kernel run on this one\n' "$1" >&2
    cd "$here"
    exec .venv/bin/python -m pytest -p no:cacheprovider -m kernel -rs "${@:2}"
}
fail() { printf 'in-vm: %s\n' "$*" >&2; exit 1; }

# Mounts what each Linux has, and empty folders where tests and labs write. The checkout, and what its Python is
# made of, stay where they are, be it in one of these.
mount_all() {
    local kept folder
    cd "$here"
    mountpoint -q /proc || mount -t proc proc /proc
    mapfile -t kept < <({ pwd; pwd -P; .venv/bin/python -c 'import os, sys
print(os.path.realpath(".venv"), sys.base_prefix, sep="\n")'; } |
        grep -E '^/(dev|run|tmp|var/lib/patchlight)(/|$)' | sort -u)
    mount --rbind / /mnt
    mountpoint -q /sys || mount -t sysfs sys /sys
    mountpoint -q /dev || mount -t devtmpfs dev /dev
    mkdir -p /dev/pts /dev/shm /var/lib/patchlight
    mount -t devpts devpts /dev/pts
    for folder in /dev/shm /run /tmp /var/lib/patchlight; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
    for folder in "${kept[@]}"; do
        mkdir -p "$folder"
        mount --bind "/mnt$folder" "$folder"
    done
    umount --recursive --lazy /mnt
    cd "$here"
}

if [ "${1:-}" = --mounted ]; then # a command, for tests: in a mount namespace of its own
    mount_all
    exec "${@:2}"
fi

# In the machine, as its first process.
if [ "${1:-}" = --inside ]; then
    shift
    mount_all
    mount -t cgroup2 cgroup /sys/fs/cgroup
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb CI=true
    export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    ip link set lo up
    hostname in-vm
    status=1
    # shellcheck disable=SC2086  # names of modules are words
    modprobe --all $MODULES && .venv/bin/python -m pytest -p no:cacheprovider "$@" && status=0 || status=$?
    echo "$END_MARK $status"
    stty sane # ends when all of it is out: what the kernel says next must not come between
    sleep 1
    echo o >/proc/sysrq-trigger
    while :; do :; done # the files are gone at once, and the first process must not end
fi

command -v qemu-system-x86_64 >/dev/null || run_here 'no QEMU here (apt-get install qemu-system-x86)' "$@"
if ! grep -qx ID=debian /etc/os-release || [ "$(uname -m)" != x86_64 ]; then
    run_here 'this is not Debian on amd64, whose kernel the machine has' "$@"
fi
[ "$(id -u)" = 0 ] || fail "needs root: sudo bash $0"
base=$("$here/deploy/server-base.sh" --vm)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/files"
cat >"$work/files/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /dev /proc /disk /host /memory /root
mount -t devtmpfs dev /dev
mount -t proc proc /proc
while read -r module; do insmod "$module"; done </order
mount -t ext4 -o ro,noload /dev/vda /disk
mount -t devtmpfs dev /disk/dev
chroot /disk modprobe -a 9p 9pnet_virtio overlay virtio_rng
umount /disk/dev
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=500000 host /host
mount -t tmpfs tmpfs /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root
mkdir -p /root/usr/lib/modules
mount --bind /disk/usr/lib/modules /root/usr/lib/modules
umount /proc
exec switch_root /root /bin/bash /arguments
INIT
chmod 755 "$work/files/init"
# switch_root empties the initrd's root: the arguments go over as a file of the machine's root.
printf 'exec bash %q --inside' "$here/tests/in-vm.sh" >"$work/files/arguments"
if [ $# -eq 0 ]; then
    # Only these files: reading all of them takes an emulated processor minutes.
    without='^$'
    has_igb || {
        without=tests/agents/test_virtual_functions.py
        echo "in-vm: no igb NIC, which QEMU has from version 8 on: $without is not run" >&2
    }
    mapfile -t files < <(cd "$here" && grep -rlE --include='test_*.py' 'mark\.(any_)?kernel' tests | grep -v "$without" | sort)
    set -- -m "(kernel or any_kernel) and not docker" -rs --durations=5 "${files[@]}"
fi
printf ' %q' "$@" >>"$work/files/arguments"
sed -i 's,^umount /proc,cp /arguments /root/arguments\n&,' "$work/files/init"
(cd "$work/files" && find . | "$base/busybox" cpio -o -H newc 2>/dev/null) >"$work/more"
cat "$base/initrd" "$work/more" >"$work/initrd"
how=tcg,thread=multi processor=max
if [ "$(cut -d' ' -f2 "$base/accelerator" 2>/dev/null)" = kvm ]; then how=kvm processor=host; fi
igb=() # a NIC with virtual functions, and one that it is plugged into
if has_igb; then
    igb=(-machine q35 -device pcie-root-port,id=root -netdev hubport,id=port,hubid=0 -netdev hubport,id=wire,hubid=0
        -device igb,bus=root,netdev=port,mac=02:4c:ff:00:00:01
        -device virtio-net-pci,netdev=wire,mac=02:4c:ff:00:00:02,romfile=)
fi
exec 3> >(exec tee "$work/console")
tee=$!
timeout "$LIMIT_S" qemu-system-x86_64 "${igb[@]}" -accel "$how" -cpu "$processor" -smp 2 -m 2048 \
    -nodefaults -no-user-config -display none -serial stdio -no-reboot \
    -kernel "$base/vmlinuz" -initrd "$work/initrd" \
    -append 'console=ttyS0 panic=-1 mitigations=off loglevel=3' \
    -drive "file=$base/disk.ext4,format=raw,if=none,id=disk,readonly=on" -device virtio-blk-pci,drive=disk \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host -device virtio-rng-pci </dev/null >&3 &
machine=$!
trap 'kill "$machine"; exit 143' INT TERM # a machine in the background hears no Ctrl-C
exec 3>&-
wait "$machine" || :
trap - INT TERM
wait "$tee"
status=$(sed -n "s/^$END_MARK \([0-9]*\).*/\1/p" "$work/console")
[ -n "$status" ] || fail "the machine ended before pytest did (see above; it gets $LIMIT_S s)"
if [ "$status" = 0 ] && grep -qE '^(=+ )?[0-9]+ passed.* skipped' "$work/console"; then
    fail "a test was skipped (see above): this kernel should have all that they need"
fi
exit "$status"
