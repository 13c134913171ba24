#!/bin/sh
# Boots a virtual machine until it waits for a server's own files, and keeps its disk and memory.
#
#   sh template.sh BASE FOLDER SECONDS QEMU ...   FOLDER is made, with disk.qcow2 and memory
set -eu
base=$1 folder=$2 ends=$(($(date +%s) + ${3%.*}))
shift 3
part=$(mktemp -d "${base%/*}/part.XXXXXX")
qemu=
trap 'if [ -n "$qemu" ]; then kill -9 $qemu 2>/dev/null || :; fi; rm -rf "$part"' EXIT
trap 'exit 1' HUP INT TERM
cd "$part"
qemu-img create -q -f qcow2 -F raw -b "$base/disk.ext4" disk.qcow2
mkfifo input
setpriv --pdeathsig KILL "$@" <input >console 2>&1 &
qemu=$!
exec 3>input
until grep -qs '^waiting for its own files' console; do
    if [ "$(date +%s)" -ge "$ends" ] || ! kill -0 $qemu 2>/dev/null; then exit 1; fi
    sleep 0.5
done
# From the serial line to QEMU's monitor, which waits for the memory to be written.
printf '\001cmigrate "exec:cat >memory"\nquit\n' >&3
wait $qemu
qemu=
[ -s memory ]
rm input console
mv -T "$part" "$folder" 2>/dev/null || [ -d "$folder" ] # of another lab that came up
