#!/bin/sh
# Boots a rehearsal server, and then is its first process. Runs in namespaces of its own:
#
#   unshare --mount --pid --uts --ipc --fork --kill-child sh boot.sh BASE DISK NAME GPUS GROUP
#
# BASE is the root file system that all servers share; DISK has the server's own files in `upper`,
# GPUS the sockets of its emulated GPUs, which it finds in /dev/patchlight-gpus. GROUP is where its
# control groups are in every hierarchy, if there are some: then it can make more below them.
# All mounts are in the server's mount namespace, and go with its last process.
set -eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
base=$1 disk=$2 name=$3 gpus=$4 group=$5

if [ -z "${in_groups-}" ]; then
    for procs in /sys/fs/cgroup/"$group"/cgroup.procs /sys/fs/cgroup/*/"$group"/cgroup.procs; do
        if [ -e "$procs" ]; then echo 0 >"$procs"; fi
    done
    in_groups=yes exec unshare --cgroup sh "$0" "$@"
fi

read_only() {
    mount --bind "$1" "$1"
    mount -o remount,bind,ro "$1"
}

mount -t overlay -o "lowerdir=$base,upperdir=$disk/upper,workdir=$disk/work" "$name" "$disk/root"
cd "$disk/root"
mount -t proc -o nosuid,nodev,noexec proc proc
# What is no namespace's own is this machine's: it can be read, not changed.
read_only proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,rw proc/sys/net
if [ -e proc/sysrq-trigger ]; then read_only proc/sysrq-trigger; fi
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] && [ -d "/sys/fs/cgroup/$group" ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    # A group that hands down controllers must have no process itself.
    mkdir -p sys/fs/cgroup/server
    echo 0 >sys/fs/cgroup/server/cgroup.procs
    sed 's/[^ ]*/+&/g' sys/fs/cgroup/cgroup.controllers >sys/fs/cgroup/cgroup.subtree_control
elif [ -d "/sys/fs/cgroup/memory/$group" ]; then
    mount -t tmpfs -o mode=755,nosuid,nodev,noexec cgroup sys/fs/cgroup
    while IFS=: read -r _ controllers _; do
        case $controllers in '' | *=*) continue ;; esac
        mkdir "sys/fs/cgroup/$controllers"
        mount -t cgroup -o "$controllers" cgroup "sys/fs/cgroup/$controllers"
        for each in $(echo "$controllers" | tr , ' '); do
            [ -e "sys/fs/cgroup/$each" ] || ln -s "$controllers" "sys/fs/cgroup/$each"
        done
    done </proc/self/cgroup
fi
# An overlay on an overlay is none.
if [ -d "$disk/docker" ]; then
    mkdir -p var/lib/docker
    mount --bind "$disk/docker" var/lib/docker
fi
mount -t tmpfs -o mode=755,nosuid dev dev
for device in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "dev/${device%:*}" c 1 "${device#*:}"
done
mknod -m 666 dev/tty c 5 0
mkdir dev/patchlight-gpus
mount --bind "$gpus" dev/patchlight-gpus
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
ln -s pts/ptmx dev/ptmx
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,mode=620,gid=5,ptmxmode=666 devpts dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev shm dev/shm
mount -t tmpfs -o mode=755,nosuid,nodev run run
mkdir -p run/sshd run/lock
# Each boot has an id of its own, as on a machine.
cat proc/sys/kernel/random/uuid >run/boot_id
mount --bind run/boot_id proc/sys/kernel/random/boot_id
rm run/boot_id
hostname "$name"
# The second call takes away this machine's root, which the first has put on top of the server's.
pivot_root . .
umount -l .
cd /
# Without the powers that would reach past the namespaces: modules, clock, kexec, hardware. What
# packages and deployments want started at boot is, a Docker engine until it answers; the shell gathers orphans, and has sshd back when
# somebody restarts it by ending it.
exec env -i PATH="$PATH" setpriv --bounding-set=-sys_module,-sys_time,-sys_boot,-sys_rawio sh -c '
    for script in /etc/rc2.d/S*; do
        case $script in *ssh) ;; *) "$script" start ;; esac
        case $script in *docker)
            tries=0
            until python3 -c "import socket as s; c = s.socket(s.AF_UNIX); c.connect(\"/run/docker.sock\")
c.send(b\"GET /_ping HTTP/1.0\\r\\n\\r\\n\"); exit(not c.recv(1))" 2>/dev/null; do
                tries=$((tries + 1))
                if [ $tries -gt 300 ]; then tail -n 15 /var/log/docker.log; exit 1; fi
                sleep 0.1
            done ;;
        esac
    done
    while :; do /usr/sbin/sshd -D -e; sleep 1; done'
