#!/usr/bin/env bash
# Makes the root file system that the servers of `patchlight emulate up --server-kind ssh` share: a small
# Debian or Ubuntu of this machine's release with OpenSSH, sudo and Python. Prints its folder, and does
# nothing else where it is there. Needs root, and the first time a mirror of the distribution.
#
#   deploy/server-base.sh [--docker]     --docker: one that has a Docker engine, too
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

kind='' hooks=()
case $# in
    0) ;;
    *)
        [ "$*" = --docker ] || fail "unknown arguments $*: expected --docker or none"
        kind=-docker PACKAGES=$PACKAGES,docker.io
        # Containers have no network but the NICs that they are given. Its script is not to mount control
        # groups, nor to end where the machine does not let it have more open files.
        hooks=(
            --customize-hook='echo "{\"bridge\": \"none\", \"iptables\": false, \"ip6tables\": false}" >"$1/etc/docker/daemon.json"'
            --customize-hook='echo "cgroup /sys/fs/cgroup cgroup noauto 0 0" >>"$1/etc/fstab"'
            --customize-hook='echo "ulimit() { command ulimit \"\$@\" 2>/dev/null || :; }" >>"$1/etc/default/docker"'
        )
        ;;
esac
# shellcheck source=/dev/null
. /etc/os-release
suite=${PATCHLIGHT_SUITE:-${VERSION_CODENAME:?cannot tell which Debian or Ubuntu this is; set PATCHLIGHT_SUITE}}
command -v dpkg >/dev/null || fail "this is neither Debian nor Ubuntu: there is no dpkg here"
base=$CACHE/servers/$suite-$(dpkg --print-architecture)-$RECIPE$kind

[ "$(id -u)" = 0 ] || fail "making the root file system needs root: sudo bash ${BASH_SOURCE[0]}"
# Root's alone: programs in it that run as root are not kept up to date as this machine's are.
install -d -m 755 "$CACHE"
install -d -m 700 "$CACHE/servers"
exec 9>"$CACHE/servers/.lock"
if ! flock --nonblock 9; then
    say "waiting for another build of it to end"
    flock --timeout $LOCK_WAIT_S 9 || fail "another build has not ended in $LOCK_WAIT_S s"
fi
if ! [ -d "$base" ]; then
    command -v mmdebstrap >/dev/null ||
        fail "mmdebstrap is not installed: apt-get install mmdebstrap, or deploy/bootstrap.sh"
    say "making the root file system of the servers ($suite$kind; once, about a minute)"
    rm -rf --one-file-system "$CACHE"/servers/part.* # of a build that was killed
    part=$(mktemp -d "$CACHE/servers/part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    TMPDIR=$part mmdebstrap --variant=minbase --format=directory --include="$PACKAGES" \
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
    mv "$part/root" "$base"
fi
echo "$base"
