#!/usr/bin/env bash
# Makes the root file system that the servers of `patchlight emulate up --server-kind ssh` share: a small
# Debian or Ubuntu of this machine's release with OpenSSH, sudo and Python. Prints its folder, and does
# nothing else where it is there. Needs root, and the first time a mirror of the distribution.
#
#   deploy/server-base.sh              of servers of kind ssh
#   deploy/server-base.sh --docker     with a Docker engine, too
#   deploy/server-base.sh --vm         a disk with systemd, soft RoCE, its tools and MPI; kernel and initrd
#   deploy/server-base.sh --docker --vm    this, with a Docker engine, too, and in it the images that
#                                          deploy/worker-image.sh --save has made
#
# PATCHLIGHT_SUITE chooses another release, PATCHLIGHT_MIRROR a mirror, PATCHLIGHT_CACHE the folder
# that it is kept in.
set -euo pipefail

CACHE=${PATCHLIGHT_CACHE:-/var/cache/patchlight}
PACKAGES=bubblewrap,openssh-server,sudo,python3,python3-venv,iproute2,ethtool,ca-certificates
RECIPE=2 # to be raised when what is in the root file system changes
LOCK_WAIT_S=900

fail() { printf 'server-base: %s\n' "$*" >&2; exit 1; }
say() { printf 'server-base: %s\n' "$*" >&2; }

# A virtual machine becomes a server by a second disk with the server's own files: name, keys, network.
# One that has none when it boots waits here. With the disk it gets its NICs: udev rests until the files
# say what they are called.
export own_files='#!/bin/sh
modprobe --all virtio_net rdma_rxe
udevadm control --stop-exec-queue
echo "waiting for its own files" >/dev/ttyS0
until [ -b /dev/vdb ]; do sleep 0.1; echo 1 >/sys/bus/pci/rescan; done
cd / && busybox cpio -idmu </dev/vdb
busybox hostname -F /etc/hostname
mount --all
busybox date -s "@$(cat /sys/class/rtc/rtc0/since_epoch)"
/lib/systemd/systemd-sysctl
systemctl restart systemd-journald
networkctl reload
udevadm control --reload --start-exec-queue' own_files_unit='[Unit]
Description=Wait for the own files of this server
ConditionPathExists=!/etc/hostname
After=basic.target dbus.service systemd-networkd.service systemd-user-sessions.service
Before=ssh.service

[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/usr/local/sbin/own-files

[Install]
WantedBy=multi-user.target'

kind='' hooks=()
# Containers have no network but the NICs that they are given.
engine='echo "{\"bridge\": \"none\", \"iptables\": false, \"ip6tables\": false}" >"$1/etc/docker/daemon.json"'
case "$*" in
    '') ;;
    --docker)
        kind=-docker PACKAGES=$PACKAGES,docker.io
        # Its script is not to mount control groups, nor to end where the machine does not let it have more
        # open files.
        hooks=(
            --customize-hook="$engine"
            --customize-hook='echo "cgroup /sys/fs/cgroup cgroup noauto 0 0" >>"$1/etc/fstab"'
            --customize-hook='echo "ulimit() { command ulimit \"\$@\" 2>/dev/null || :; }" >>"$1/etc/default/docker"'
        )
        ;;
    --vm | '--docker --vm')
        kind=-vm PACKAGES=$PACKAGES,systemd-sysv,dbus,udev,kmod,busybox-static,iputils-ping,iperf3
        PACKAGES=$PACKAGES,rdma-core,ibverbs-providers,ibverbs-utils,rdmacm-utils,perftest,python3-pyverbs
        PACKAGES=$PACKAGES,openmpi-bin,python3-mpi4py,python3-numpy RECIPE=5
        hooks=(
            --customize-hook='cd "$1/boot"; export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"; apt-get -qq -o APT::Sandbox::User=root download $(apt-cache depends linux-image-amd64 | sed -n "s/.*Depends: //p")'
            --customize-hook='chroot "$1" systemctl --quiet enable systemd-networkd'
            --customize-hook='for file in "$1"/etc/rdma/modules/*; do echo rdma_ucm >"$file"; done'
            --customize-hook='chroot "$1" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap fstrim.timer'
            # No such machine has users at a console, and each of these takes its processor a second.
            --customize-hook='chroot "$1" systemctl --quiet mask getty@tty1 serial-getty@ttyS0 systemd-logind systemd-binfmt proc-sys-fs-binfmt_misc.automount rdma-ndd modprobe@{configfs,dm_mod,drm,efi_pstore,fuse,loop}'
            --customize-hook='echo "$own_files" >"$1/usr/local/sbin/own-files"; chmod 755 "$1/usr/local/sbin/own-files"'
            --customize-hook='echo "$own_files_unit" >"$1/etc/systemd/system/own-files.service"; chroot "$1" systemctl --quiet enable own-files'
        )
        if [ "$1" = --docker ]; then
            kind=-docker-vm PACKAGES=$PACKAGES,docker.io,apparmor # its kernel has AppArmor
            hooks+=(--customize-hook="$engine")
        fi
        ;;
    *) fail "unknown arguments $*: expected --docker, --vm, both or none" ;;
esac

# A disk, a kernel, and an initrd that mounts the disk once it has the server's own files.
# The kernel is unpacked, not installed: its package would make an initrd ten times as large.
make_machine() {
    local root=$1 machine=$2 work=$1/../work release module
    mkdir -p "$machine" "$work"/{bin,disk,modules}
    dpkg-deb -x "$root"/boot/linux-image-*.deb "$work/kernel"
    rm "$root"/boot/linux-image-*.deb
    # From Debian 13 on its modules are below /usr.
    [ -d "$work/kernel/lib" ] || mv "$work/kernel/usr/lib" "$work/kernel/"
    # What no such machine has, or what its emulated processor takes long to load.
    rm -rf "$work"/kernel/lib/modules/*/kernel/{sound,arch,net/{wireless,mac80211}} \
        "$work"/kernel/lib/modules/*/kernel/drivers/{ata,cpufreq,gpu,input,media,net/wireless,scsi}
    mv "$work"/kernel/boot/vmlinuz-* "$machine/vmlinuz"
    mv "$work/kernel/lib/modules" "$root/usr/lib/"
    rm -r "$work/kernel"
    release=$(ls "$root/usr/lib/modules")
    chroot "$root" depmod "$release"
    (
        cd "$work"
        cp "$root/bin/busybox" bin/
        chroot "$root" modprobe --set-version "$release" --all --show-depends virtio_pci virtio_blk ext4 |
            awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
            cp "$root$module" modules/
            echo "/modules/${module##*/}"
        done >order
        if compgen -G 'modules/*.xz' >/dev/null; then bin/busybox unxz modules/*.xz; fi
        sed -i 's/\.xz$//' order
        cat >init <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /dev /proc
mount -t devtmpfs dev /dev
mount -t proc proc /proc
while read -r module; do insmod "$module"; done </order
# Without a disk this is a trial of whether the machine boots.
[ -b /dev/vda ] || poweroff -f
mount -t ext4 /dev/vda /disk
[ -e /disk/etc/hostname ] || ! [ -b /dev/vdb ] || (cd /disk && cpio -idmu </dev/vdb)
umount /proc
exec switch_root /disk /sbin/init
END
        chmod 755 init
        find . | bin/busybox cpio -o -H newc >"$machine/initrd"
        cp bin/busybox "$machine/"
    )
    say "making the disk"
    mke2fs -q -t ext4 -E root_owner=0:0 -d "$root" "$machine/disk.ext4" 8G >/dev/null
}

# Unpacks images into the Docker engine of a root file system, by that engine, in namespaces: an emulated
# processor takes many minutes for it.
load_images() {
    unshare --mount --pid --net --fork --kill-child sh -euc '
        images=$1 linux=$2 root=$3
        shift 3
        mount --bind "$root" "$root"
        cd "$root"
        mount -t proc proc proc
        mount --rbind /sys sys
        mount --rbind /dev dev
        mount -t tmpfs run run
        mkdir run/images run/linux
        mount --bind "$images" run/images
        mount --bind "$linux" run/linux
        pivot_root . .
        umount -l .
        exec python3 - "$@"' sh "$CACHE" "$(realpath "${BASH_SOURCE[0]%/*}/../testbed/linux")" "$@" <<'END'
import subprocess
import sys
import time

sys.path.insert(0, "/run/linux")
import docker_engine

engine = subprocess.Popen(["dockerd", "--storage-driver=overlay2"])
ends = time.monotonic() + 60
while not docker_engine.answers():
    if engine.poll() is not None or time.monotonic() > ends:
        sys.exit("the Docker engine did not start")
    time.sleep(0.1)
for name in sys.argv[1:]:
    with open(f"/run/images/{name}", "rb") as file:
        pieces = iter(lambda: file.read(1 << 20), b"")
        answer = docker_engine.ask("POST", "/images/load?quiet=1", body=pieces, timeout_s=600)
    if answer.status != 200 or '"error"' in answer.text:
        sys.exit(f"the Docker engine refused {name}: {answer.text}")
engine.terminate()
sys.exit(engine.wait())
END
}

# A build of an older version that was killed has left its mounts, too.
remove_killed_builds() {
    awk -v begin="$CACHE/servers/part." 'index($2, begin) == 1 { print $2 }' /proc/mounts | sort -r |
        while read -r mounted; do umount "$mounted"; done
    rm -rf --one-file-system "$CACHE"/servers/part.*
}

# shellcheck source=/dev/null
. /etc/os-release
suite=${PATCHLIGHT_SUITE:-${VERSION_CODENAME:?cannot tell which Debian or Ubuntu this is; set PATCHLIGHT_SUITE}}
# From Debian 13 on the docker command is a package of its own.
case $ID-$suite in debian-bookworm | ubuntu-*) ;; *) PACKAGES=${PACKAGES/docker.io/docker.io,docker-cli} ;; esac
command -v dpkg >/dev/null || fail "this is neither Debian nor Ubuntu: there is no dpkg here"
if [[ $kind = *-vm ]] && [ "$ID-$(dpkg --print-architecture)" != debian-amd64 ]; then
    fail "virtual machines are made of Debian's kernel for amd64, and this is $ID on $(dpkg --print-architecture)"
fi
base=$CACHE/servers/$suite-$(dpkg --print-architecture)-$RECIPE$kind images=()
if [ "$kind" = -docker-vm ]; then
    for each in worker worker-torch worker-mpi; do
        # The newest of each kind.
        image=$(find "$CACHE" -maxdepth 1 -name "$each-$suite-*.image.tar" -printf '%T@ %f\n' | sort -n | tail -n1)
        [ -z "$image" ] || images+=("${image#* }")
    done
    base=$base-$(cd "$CACHE" && stat -c '%n %s %Y' . "${images[@]}" | sed 1d | sha256sum | cut -c1-8)
fi

[ "$(id -u)" = 0 ] || fail "making the root file system needs root: sudo bash ${BASH_SOURCE[0]}"
# Root's alone: programs in it that run as root are not kept up to date as this machine's are.
install -d -m 755 "$CACHE"
install -d -m 700 "$CACHE/servers"
exec 9>"$CACHE/servers/.lock"
if ! [ -d "$base" ] && ! flock --nonblock 9; then
    say "waiting for another build of it to end"
    flock --timeout $LOCK_WAIT_S 9 || fail "another build has not ended in $LOCK_WAIT_S s"
fi
if ! [ -d "$base" ]; then
    command -v mmdebstrap >/dev/null ||
        fail "mmdebstrap is not installed: apt-get install mmdebstrap, or deploy/bootstrap.sh"
    [ "$kind" != -vm ] || command -v mke2fs >/dev/null || fail "mke2fs is not installed: apt-get install e2fsprogs"
    say "making the root file system of the servers ($suite$kind; once, about a minute)"
    remove_killed_builds
    part=$(mktemp -d "$CACHE/servers/part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    # What it mounts goes with it, even if it is killed.
    TMPDIR=$part unshare --mount --propagation private mmdebstrap --variant=minbase --format=directory --include="$PACKAGES" \
        --dpkgopt=force-unsafe-io --aptopt='Acquire::Languages "none"' --aptopt='Acquire::Retries "3"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='chroot "$1" useradd --uid 1000 --create-home --shell /bin/bash --groups sudo admin' \
        --customize-hook='echo "%sudo ALL=(ALL:ALL) NOPASSWD: ALL" >"$1/etc/sudoers.d/nopasswd"' \
        --customize-hook='chmod 440 "$1/etc/sudoers.d/nopasswd"' \
        --customize-hook='chmod 644 "$1/etc/resolv.conf"' \
        --customize-hook='rm -f "$1"/etc/ssh/ssh_host_* "$1/etc/hostname" "$1/etc/machine-id"' \
        --customize-hook=': >"$1/etc/resolv.conf"' "${hooks[@]}" \
        "$suite" "$part/root" ${PATCHLIGHT_MIRROR:+"$PATCHLIGHT_MIRROR"} 2> >(
            # What takes long is said as it begins, the rest only where it fails.
            tee "$part/log" | sed -un 's/^I: \(.*\.\.\.\)$/server-base: \1/p' >&2
        ) >/dev/null || {
        tail -n 15 "$part/log" >&2
        fail "mmdebstrap could not make it (see above); it needs a mirror of $suite" \
            "(PATCHLIGHT_MIRROR=URL chooses one)"
    }
    chmod 755 "$part/root"
    if [ ${#images[@]} -gt 0 ]; then
        say "unpacking ${images[*]}"
        load_images "$part/root" "${images[@]}" >"$part/log" 2>&1 ||
            { tail -n 15 "$part/log" >&2; fail "its Docker engine could not unpack the images (see above)"; }
    fi
    if [[ $kind = *-vm ]]; then
        make_machine "$part/root" "$part/machine"
        mv "$part/machine" "$base"
    else
        mv "$part/root" "$base"
    fi
fi
echo "$base"
