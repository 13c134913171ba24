#!/bin/sh
# A job of Slurm starts when its circuits are verified, and gives them back at its end. slurm.conf names
# a script as PrologSlurmctld and EpilogSlurmctld that sets these variables and runs this one:
#
#   PATCHLIGHT            the command, by default /opt/patchlight/bin/patchlight
#   PATCHLIGHT_LAB        the lab file; other variables of the command may stand there, too
#   CIRCUITS_ATTEMPTS     3: a job whose circuits failed so often is held
#   SLURM_CONF, PATH      where Slurm is elsewhere than its package puts it
#
# It may run twice, and for many jobs at once. Commands of Slurm can wait for what waits for a prolog:
# they run in a process of their own, which holds the job and writes the reason into AdminComment.
set -u
PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}
export PATH
patchlight=${PATCHLIGHT:-/opt/patchlight/bin/patchlight}
claim=slurm-$SLURM_JOB_ID

claim_circuits() {
    case ${SLURM_JOB_COMMENT-},${SLURM_JOB_CONSTRAINTS-} in
        *circuits=none*) return 0 ;;
        *circuits=ring*) shape=ring ;;
        *circuits=open*) shape=open ;;
        *) shape=switch ;;
    esac
    set -- "$claim" --nodes "$SLURM_JOB_NODELIST" --shape "$shape"
    # Slurm 24.11 has it, 22.05 does not. So a claim whose epilog never ran ends by itself.
    if [ -n "${SLURM_JOB_END_TIME-}" ]; then
        set -- "$@" --time-limit "$((SLURM_JOB_END_TIME - SLURM_JOB_START_TIME + 600))s"
    fi
    said='' status=3
    while [ "$status" -eq 3 ]; do # still in line
        said=$("$patchlight" ocs claim "$@" --wait 300s 2>&1)
        status=$?
    done
    return "$status"
}

release() {
    said=$("$patchlight" ocs claim "$claim" --release 2>&1)
}

# The controller did not answer at the job's end: release once it does, unless the job has started again.
release_later() {
    tries=0
    while [ "$tries" -lt 10000 ]; do
        tries=$((tries + 1))
        sleep 10
        case $(scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null) in
            *JobState=CONFIGURING* | *JobState=RUNNING*) return ;;
        esac
        if release; then return; fi
    done
}

# Hold the job, or only say why it waits, once the prolog has ended and Slurm has queued the job again.
report() {
    while kill -0 "$PROLOG" 2>/dev/null; do sleep 0.2; done
    tries=0
    until scontrol update "JobId=$SLURM_JOB_ID" "AdminComment=$REASON" &&
        { [ "$HOLD" = no ] || scontrol uhold "$SLURM_JOB_ID"; }; do
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || return 1
        sleep 1 # the job is still completing
    done
}

# Slurm kills the prolog of a job that is cancelled, and now and then its epilog, too; and a slurmctld that
# was killed may have forgotten the job. Nobody else would release such a job's claim.
release_if_ended() {
    while kill -0 "$PROLOG" 2>/dev/null; do sleep 1; done
    while true; do
        case $(scontrol --oneliner show job "$SLURM_JOB_ID" 2>&1) in
            *JobState=CONFIGURING* | *JobState=RUNNING* | *JobState=SUSPENDED*) return ;;
            *JobState=PENDING* | *JobState=REQUEUE*) return ;;
            *JobState=* | *"Invalid job id"*) if release; then return; fi ;;
        esac
        sleep 10 # slurmctld or the controller does not answer
    done
}

# Slurm kills a script's process group when it has ended: return once the other has a session of its own
# and has closed its output.
detach() {
    SLURM_SCRIPT_CONTEXT=$1
    export SLURM_SCRIPT_CONTEXT
    : "$(setsid sh "$0" 2>/dev/null </dev/null &)"
}

case $SLURM_SCRIPT_CONTEXT in
    prolog_slurmctld)
        PROLOG=$$
        export PROLOG
        (detach release_if_ended)
        claim_circuits && exit 0
        attempt=$((${SLURM_JOB_RESTART_COUNT:-0} + 1)) most=${CIRCUITS_ATTEMPTS:-3} HOLD=no
        if [ "$attempt" -ge "$most" ]; then HOLD=yes; fi
        REASON="attempt $attempt of $most: no circuits: $(printf %s "$said" | tr -s '[:space:]"' ' ' | cut -c -500)"
        export HOLD REASON
        detach report
        exit 1
        ;;
    epilog_slurmctld) release || detach release_later ;;
    report | release_later | release_if_ended)
        exec >/dev/null
        "$SLURM_SCRIPT_CONTEXT"
        ;;
esac
