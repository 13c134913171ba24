# Says what a server has, a line for each thing, and changes nothing. Read by deploy/facts.py, which
# has it run by `sh` on the server, or here; $1 is put before /sys, /proc and the like.
root=${1-}
PATH=$PATH:/usr/local/bin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
exec 2>/dev/null

# The first word of a file, or - where there is none.
word() { word=; { read -r word rest; } <"$1"; word=${word:--}; }
# Where a link leads to.
end() { end=$(readlink -f "$1") && [ -e "$1" ] && end=${end##*/} || end=-; }
# The PCI address of the card that a device is, or is a part of.
card() {
    card=-
    [ -e "$1" ] || return 0
    path=$(readlink -f "$1")
    while [ "$path" ]; do
        case ${path##*/} in *:??:??.?) card=${path##*/}; return 0 ;; esac
        path=${path%/*}
    done
}

# The time comes first: it is compared with ours at both ends of the wait for it.
echo "time $(date +%s.%N)"
echo "user $(id -un)"
if command -v python3 >/dev/null; then
    echo "python $(python3 -c '
import sys
try:
    import ensurepip, venv
except ImportError:
    ensurepip = None
print(".".join(map(str, sys.version_info[:3])), "venv" if ensurepip else "-")
')"
fi
echo "disk $(df -Pk /opt | tail -n 1)"
if [ -d "$root/run/systemd/system" ]; then
    echo "systemd $(systemctl --version | head -n 1 | cut -d ' ' -f 2)"
fi

for nic in "$root"/sys/class/net/*; do
    [ -e "$nic/mtu" ] || continue
    word "$nic/mtu"; mtu=$word
    word "$nic/speed"; speed=$word
    word "$nic/dev_port"; port=$word
    driver=- card=-
    if [ -e "$nic/device" ]; then end "$nic/device/driver"; driver=$end; card "$nic/device"; fi
    echo "nic ${nic##*/} mtu=$mtu speed=$speed driver=$driver pci=$card port=$port"
done

# GPUs and NICs that workers of any lab hold, by network namespace: their NICs are in there.
for claim in "$root"/run/patchlight-claims/*.json; do
    [ -e "$claim" ] || continue
    # The file may lack its last line end.
    { cat "$claim"; echo; } | sed -n 's/.*"namespace": "\([^"]*\)".*/claim \1/p'
done

# The control register of a bridge's ACS: from its extended capabilities, which root can read.
acs() {
    acs=- at=256 left=96
    [ "$(stat -c %s "$1")" -gt 256 ] || { acs=none; return 0; }
    while [ "$at" -ge 256 ] && [ "$left" -gt 0 ]; do
        # The capability and, in 16 bits each, its version with the next offset, ability, control.
        set -- "$1" $(od -An -v -tu2 -j "$at" -N 8 "$1")
        [ $# = 5 ] || return 0
        acs=none
        if [ "$2" = 13 ]; then acs=$5; return 0; fi
        at=$((($3 >> 4) & 4092)) left=$((left - 1))
    done
}

# Network cards and GPUs, and the bridges above them.
for device in "$root"/sys/bus/pci/devices/*; do
    word "$device/class"
    case $word in
    0x0604*) acs "$device/config"; echo "bridge ${device##*/} acs=$acs"; continue ;;
    0x02* | 0x03*) class=$word ;;
    *) continue ;;
    esac
    word "$device/vendor"; vendor=$word
    word "$device/numa_node"; numa=$word
    word "$device/iommu_group/type"; iommu=$word
    end "$device/driver"; driver=$end
    path=$(readlink -f "$device")
    echo "pci ${device##*/} class=$class vendor=$vendor driver=$driver numa=$numa" \
        "iommu=$iommu path=${path#*/devices/}"
done

for rdma in "$root"/sys/class/infiniband/*; do
    [ -e "$rdma/ports" ] || continue
    card "$rdma/device"
    word "$rdma/parent"; parent=$word # of a software device
    for port in "$rdma"/ports/*; do
        state=- link=-
        { read -r number state; } <"$port/state"
        word "$port/link_layer"; link=$word
        echo "rdma ${rdma##*/} port=${port##*/} state=$state link=$link pci=$card parent=$parent"
    done
done

known=$root/lib/modules/$(uname -r)
for module in nvidia nvidia_uvm nvidia_peermem ib_uverbs rdma_ucm; do
    file="/$(echo "$module" | sed 's/_/[-_]/g')\\.ko"
    if [ -d "$root/sys/module/$module" ]; then state=loaded
    elif grep -q "$file" "$known/modules.builtin"; then state=loaded
    elif grep -q "$file" "$known/modules.dep"; then state=there
    elif [ -e "$known/modules.dep" ]; then state=absent
    else state=unknown; fi
    echo "module $module $state"
done

# A driver that hangs must not hang us.
word "$root/sys/module/nvidia/version"
[ "$word" = - ] || echo "nvidia $word"
grep -q 'Open Kernel Module' "$root/proc/driver/nvidia/version" && echo "nvidia-open yes"
echo "kernel $(uname -r)"
if command -v nvidia-smi >/dev/null; then
    if gpus=$(timeout 30 nvidia-smi --query-gpu=uuid,pci.bus_id,name --format=csv,noheader 2>&1); then
        echo "$gpus" | sed 's/^/gpu /'
    else
        echo "smi $(echo "$gpus" | head -n 1)"
    fi
fi
[ -d "$root/dev/patchlight-gpus" ] && echo "gpu-sockets /dev/patchlight-gpus"
if command -v nvidia-ctk >/dev/null; then
    echo "toolkit $(nvidia-ctk --version | head -n 1 | sed 's/.* //')"
fi
if command -v bwrap >/dev/null; then
    echo "bwrap $(bwrap --version | sed 's/.* //')"
fi
for folder in "$root/etc/cdi" "$root/var/run/cdi"; do
    for spec in "$folder"/*.yaml "$folder"/*.json; do
        [ -e "$spec" ] && echo "cdi $(grep -o 'nvidia\.com/gpu' "$spec" | head -n 1) ${spec#"$root"}"
    done
done
