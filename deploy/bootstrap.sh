#!/usr/bin/env bash
# Installs what Patchlight needs on Debian 12 and 13, or Ubuntu 24.04, and makes .venv. Run it as often as
# you like: with nothing missing it ends at once. Needs root or sudo only where apt must install.
#
#   deploy/bootstrap.sh           what `make demo` needs
#   deploy/bootstrap.sh --docs    also what builds the documentation
#   deploy/bootstrap.sh --test    also what `make test` needs
#   deploy/bootstrap.sh --bench   also the peers that `make bench` measures beside us
#   deploy/bootstrap.sh --release also what `make release` and `make audit` need
#   deploy/bootstrap.sh --slurm   also what `make slurm-demo` needs (Slurm, and PyTorch)
#   deploy/bootstrap.sh --learn   also what `patchlight policy train` needs (PyTorch), and Ray
#
# --test and --bench bring in what --learn does, --test also what --docs does. All bring in the Python
# packages of the tests: in deploy/lock.txt a section lacks what a section before it has.
#
# With CPython 3.11 on x86-64 Linux the Python packages are those of deploy/lock.txt, each with its
# hash; with any other, and with --unlocked, the newest that setup.cfg allows. PyTorch always is.
#
# PYTHON=/path/to/python3 chooses the interpreter (3.11 or newer).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { printf 'bootstrap: %s\n' "$*" >&2; exit 1; }
say() { printf 'bootstrap: %s\n' "$*" >&2; }

# Paths at which no Python environment can be, or its libraries cannot be loaded, or Docker cannot mount it.
odd=$(printf %s "$PWD" | tr -d '[:alnum:]/ _.,@=+~()\200-\377-' && echo .)
if [ "$odd" != . ]; then
    fail "cannot work in $(printf %q "$PWD"), because its path has $(printf %q "${odd%.}"): clone elsewhere, for instance to" \
        "~/patchlight (a path may have letters, digits, spaces and _ - . , @ = + ~ ( ))"
fi
if findmnt --noheadings --output OPTIONS --target . 2>/dev/null | grep -qw noexec; then
    fail "cannot work in $PWD: its file system is mounted noexec; clone elsewhere, for instance to ~/patchlight"
fi
if ! [ -w . ]; then fail "cannot write to $PWD: run it as its owner, or clone elsewhere"; fi

packages=(openvswitch-switch docker.io bubblewrap iproute2 ethtool iputils-ping libseccomp2 util-linux mmdebstrap
    openssh-client python3-venv)
# A kernel with AppArmor on lets Docker start containers only where its parser is there too.
if grep -qs Y /sys/module/apparmor/parameters/enabled; then packages+=(apparmor); fi
# From Debian 13 on the docker command is a package of its own; the tests use it.
slurm=(slurmctld slurmd slurm-client munge)
docker_cli=()
if grep -qs '^VERSION_ID="1[3-9]' /etc/os-release; then docker_cli=(docker-cli); fi
learn='' docs='' release='' unlocked=''
for option in "$@"; do
    case $option in
        --test) packages+=(gcc libc6-dev prometheus chromium qemu-system-x86 qemu-utils e2fsprogs snmpd lldpd "${slurm[@]}" "${docker_cli[@]}"); learn=yes docs=yes ;;
        --docs) docs=yes ;;
        --bench) packages+=(mininet openvswitch-testcontroller iperf3 python3-simgrid chromium); learn=yes ;;
        --slurm) packages+=("${slurm[@]}"); learn=yes ;;
        --learn) learn=yes ;;
        --release) release=yes ;;
        --unlocked) unlocked=yes ;;
        *) fail "unknown option $option (known: --docs, --test, --bench, --slurm, --learn, --release, --unlocked)" ;;
    esac
done

# --- packages ---------------------------------------------------------------------------------

POLICY=/usr/sbin/policy-rc.d
MARK='# put here by Patchlight deploy/bootstrap.sh, for as long as apt runs'

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null)" = 'ii ' ]
}

# These stand for any Docker: that of docker.com conflicts with Debian's.
present() {
    case $1 in
        docker.io) command -v dockerd >/dev/null ;;
        docker-cli) command -v docker >/dev/null ;;
        *) installed "$1" ;;
    esac
}

# The packages are wanted for their programs. Patchlight runs an Open vSwitch and Docker
# engine of its own, so the services that come along are neither started now nor at the next boot.
allow_services() {
    if grep -qsF "$MARK" "$POLICY"; then as_root rm -f "$POLICY"; fi
}

forbid_services() {
    [ -e "$POLICY" ] && return
    trap allow_services EXIT
    printf '#!/bin/sh\n%s\nexit 101\n' "$MARK" | as_root tee "$POLICY" >/dev/null
    as_root chmod 755 "$POLICY"
}

disable_services_of() {
    command -v systemctl >/dev/null || return 0
    local package unit
    for package in "$@"; do
        for unit in $(dpkg -L "$package" 2>/dev/null |
            sed -nE -e 's,^(/usr)?/lib/systemd/system/([^/@]+\.(service|socket))$,\2,p' \
                -e 's,^/etc/init\.d/([^/]+)$,\1,p'); do
            as_root systemctl disable --quiet "$unit" 2>/dev/null || true
        done
    done
}

install_packages() {
    local missing=() package before
    for package in "$@"; do present "$package" || missing+=("$package"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        fail "needs ${missing[*]}, and there is no apt-get here: install them by hand"
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
        fail "needs ${missing[*]}: run 'apt-get install ${missing[*]}' as root (no sudo here)"
    say "installing ${missing[*]} (a minute or so)"
    before=$(dpkg-query -W -f '${Package}\n' | sort)
    allow_services # one that a killed run left
    forbid_services
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        "${missing[@]}" >/dev/null
    # shellcheck disable=SC2046  # package names are words
    disable_services_of $(comm -13 <(echo "$before") <(dpkg-query -W -f '${Package}\n' | sort))
    allow_services
}

# --- Python -----------------------------------------------------------------------------------

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

choose_python() {
    local candidate
    for candidate in ${PYTHON:-/usr/bin/python3 python3 python3.13 python3.12 python3.11}; do
        if is_new_enough "$candidate"; then command -v "$candidate"; return; fi
    done
    fail "needs Python 3.11 or newer: install python3.11, or set PYTHON=/path/to/python3"
}

fingerprint() {
    { cat setup.cfg pyproject.toml deploy/ryu-constraint.txt deploy/lock.txt
      echo "$unlocked"
      .venv/bin/python -c 'import sys; print(sys.version, sys.prefix)'
      pwd; } 2>/dev/null | sha256sum
}

# Whether these packages were installed since what decides about them changed.
is_current() { [ "$(cat ".venv/patchlight-stamp-$1" 2>/dev/null)" = "$(fingerprint)" ]; }
now_current() { fingerprint >".venv/patchlight-stamp-$1"; }

locked() {
    [ -z "$unlocked" ] && .venv/bin/python -c 'import platform as p, sys
sys.exit((p.python_implementation(), sys.version_info[:2], sys.platform, p.machine())
         != ("CPython", (3, 11), "linux", "x86_64"))'
}

pip_install() { .venv/bin/python -m pip install --quiet "$@"; }

# Counts the packages that pip names, of how many: on one line of a terminal, else a line for each 10.
count_packages() {
    local all=$1 line done=0
    while IFS= read -r line; do
        case $line in Collecting*) done=$((done + 1)) ;; *) continue ;; esac
        if [ -t 2 ]; then
            printf '\rbootstrap: Python packages fetched: %d of %d' "$done" "$all" >&2
        elif [ $((done % 10)) = 0 ]; then
            say "Python packages fetched: $done of $all"
        fi
    done
    if [ -t 2 ]; then echo >&2; fi
    if [ "$done" -gt 0 ]; then say "installing them"; fi
}

# Installs sections of the lock, which has all that they need: what it lacks is not looked for.
install_locked() {
    local section file status=0
    file=$(mktemp)
    for section in "$@"; do
        sed -n "/^# --- $section\$/,/^# --- /p" deploy/lock.txt >>"$file"
    done
    .venv/bin/python -m pip install --no-deps --no-build-isolation --require-hashes \
        --progress-bar off --requirement "$file" |
        count_packages "$(grep -c == "$file")" || status=1
    rm -f "$file"
    return $status
}

# Installs Patchlight and what these extras need.
install_extras() {
    if ! locked; then
        pip_install --constraint deploy/learn-constraint.txt --editable ".[$(IFS=,; echo "$*")]"
    elif install_locked "$@"; then
        # It warns of folders that have the name of the package; ours is meant.
        PYTHONWARNINGS=ignore pip_install --no-deps --no-build-isolation --editable .
    else
        fail "could not install deploy/lock.txt (see above); --unlocked takes what setup.cfg allows"
    fi
}

# Ryu 4.34 builds only with an old setuptools, so it is built first, alone. PIP_CONSTRAINT holds
# for the build up to pip 25, PIP_BUILD_CONSTRAINT after it.
install_ryu() {
    local ryu
    if locked; then
        .venv/bin/python -m pip show --quiet ryu 2>/dev/null || install_locked build
        install_locked ryu
        return
    fi
    ryu=$(.venv/bin/python - <<'PY'
import configparser
config = configparser.ConfigParser()
config.read("setup.cfg")
print(config["options.extras_require"]["ryu"].strip().replace(" ", ""))
PY
    )
    # Relative, because pip takes a space for the end of a path.
    PIP_CONSTRAINT=deploy/ryu-constraint.txt PIP_BUILD_CONSTRAINT=deploy/ryu-constraint.txt \
        pip_install --no-deps --use-pep517 "$ryu"
}

make_venv() {
    local python extras=(dashboard)
    if ! is_new_enough .venv/bin/python; then
        python=$(choose_python)
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python cannot make virtual environments: its ensurepip module is missing"
        say "making .venv with $python"
        "$python" -m venv --clear .venv
    fi
    if is_current base; then return; fi
    say "installing the Python packages into .venv (one to three minutes)"
    if install_ryu; then
        extras+=(ryu)
    else
        say "Ryu could not be built (see above): going on with OS-Ken as the only OpenFlow engine"
    fi
    install_extras "${extras[@]}"
    # Without Ryu there is no stamp: the next run tries again.
    if [[ ${extras[*]} = *ryu ]]; then now_current base; fi
}

# PyTorch comes first and alone, and where there is no GPU its build for processors: a later
# package would draw in the build for GPUs, which is gigabytes.
install_learning() {
    local torch
    if is_current learn; then return; fi
    say "installing PyTorch into .venv (a few minutes)"
    torch=$(cat deploy/learn-constraint.txt)
    if command -v nvidia-smi >/dev/null || ! pip_install --retries 1 \
        --index-url https://download.pytorch.org/whl/cpu "$torch"; then
        pip_install "$torch" ||
            fail "could not install PyTorch ($torch): is there a wheel for this Python?"
    fi
    install_more learning learn ray
}

# Installs these extras, once; the first argument says what they are for.
install_more() {
    local what=$1
    shift
    if is_current "$1"; then return; fi
    say "installing what $what needs into .venv"
    install_extras "$@"
    now_current "$1"
}

# As root, `make` writes no bytecode into a user's checkout. Without any, each process of a lab
# would compile all of Patchlight again; where it cannot be written, that is what it does.
compile_ours() {
    .venv/bin/python -m compileall -qq agents controller deploy emulation patchlight testbed || true
    # What Numba keeps can name a module that is gone since.
    local network=emulation/simulator/network
    find "$network" -name '*.nb[ci]' ! -newer "$(ls -t "$network"/*.py | head -n 1)" -delete || true
}

install_packages "${packages[@]}"
make_venv
if [ -n "$learn$docs$release" ]; then install_more "make test" test; fi
if [ -n "$learn" ]; then install_learning; fi
if [ -n "$docs" ]; then install_more "the documentation" docs; fi
if [ -n "$release" ]; then install_more "a release" release; fi
compile_ours
