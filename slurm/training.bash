# shellcheck shell=bash
# What train.sbatch and train_multinode.sbatch share; sourced by them, from the checkout.

# EX_TEMPFAIL of sysexits.h: train.py has saved a checkpoint on SIGUSR1; the same command continues from there.
readonly NOT_FINISHED=75
# The shell's exit code of a process killed by SIGUSR1: train.py was still loading and had no handler yet.
readonly KILLED_BY_USR1=138

arguments=()
out=""
train=""
reason=""

say() { printf '%s: %s\n' "${SLURM_JOB_ID:-train}" "$*" >&2; }

refuse() {
  say "error: $*"
  exit 2
}

# read_arguments ARGUMENT...: fills $arguments, with the number of the array's task in place of {task}, and $out.
read_arguments() {
  local argument template=""
  for argument in "$@"; do
    case $argument in deltamem.out=*) template=${argument#*=} ;; esac
    if [[ $argument == *"{task}"* ]]; then
      if [[ -z ${SLURM_ARRAY_TASK_ID:-} ]]; then refuse "$argument: not a task of a job array; submit with --array"; fi
      argument=${argument//"{task}"/$SLURM_ARRAY_TASK_ID}
    fi
    arguments+=("$argument")
    case $argument in deltamem.out=*) out=${argument#*=} ;; esac
  done
  if [[ -z $out ]]; then refuse "no deltamem.out=FOLDER among the arguments"; fi
  if [[ -n ${SLURM_ARRAY_TASK_ID:-} && $template != *"{task}"* ]]; then
    refuse "deltamem.out=$template: the tasks of an array need a folder each; put {task} into its name"
  fi
}

need_programs() {
  local program
  if [[ ! -f train.py ]]; then refuse "$PWD: no train.py here; submit from the checkout"; fi
  for program in "$@"; do
    if ! type -P "$program" >/dev/null; then refuse "$program: no such program; set PYTHON"; fi
  done
}

# The step of the newest checkpoint and the number of finished stages.
progress() {
  local note="$out/grpo/checkpoints/latest_checkpointed_iteration.txt" step=0 stages
  if [[ -s $note ]]; then step=$(<"$note"); fi
  stages=$(find "$out/stages" -name '*.json' 2>/dev/null | wc -l) || true
  printf 'step %s, %d stages' "$step" "$stages"
}

# count_start LIMIT: notes this start in $out/slurm_starts.txt, and ends a job that goes round in circles.
count_start() {
  local now line idle=0 starts="$out/slurm_starts.txt" form
  now=$(progress)
  form="job ${SLURM_JOB_ID:-0} start"
  mkdir -p "$out"
  if [[ -f $starts ]]; then
    while read -r line; do
      if [[ $line == "$form "*": $now" ]]; then idle=$((idle + 1)); elif [[ $line == "$form "* ]]; then idle=0; fi
    done <"$starts"
  fi
  if ((idle >= $1)); then
    say "error: $idle starts of this job brought no new checkpoint ($now); see $out/logs, and give it more time (sbatch --time)" \
      "or a smaller trainer.save_freq"
    exit 1
  fi
  printf '%s %d: %s\n' "$form" "${SLURM_RESTART_COUNT:-0}" "$now" >>"$starts"
  say "start ${SLURM_RESTART_COUNT:-0} of the job, $out is at $now"
}

# Waits half a second, or until a signal comes. `wait -n` would do, but misses a process that has ended just before.
pause() {
  sleep 0.5 &
  wait $! || true
}

# forward SIGNAL: hands a signal of Slurm's on to train.py. Slurm warns a job at once whose limit is shorter than the warning before
# it; that job would stop and start in circles.
forward() {
  if [[ $1 == USR1 ]] && ((SECONDS < 120 && ${SLURM_JOB_END_TIME:-0} > 0)) &&
    ((SLURM_JOB_END_TIME - $(date +%s) < 7200)); then
    refuse "Slurm warns of the time limit as soon as the job starts; submit with a longer --time, or a shorter warning" \
      "(--signal=B:USR1@300)"
  fi
  reason=$1
  say "SIG$1"
  if [[ -n $train ]]; then kill -s "$1" "$train" 2>/dev/null || true; fi
}

end_training() {
  if [[ -z $train ]]; then return 0; fi
  kill -TERM "$train" 2>/dev/null || true
  while kill -0 "$train" 2>/dev/null; do wait "$train" || true; done
  train=""
}

requeue() {
  say "$1; back into the queue"
  if scontrol requeue "$SLURM_JOB_ID"; then exit 0; fi
  say "error: Slurm did not take the job back; the same sbatch command goes on from the last checkpoint"
  exit $NOT_FINISHED
}

# finish CODE: ends the job as train.py ended. A job that was cancelled, or is preempted, must not ask for another turn.
finish() {
  if [[ $reason == TERM || $reason == INT ]]; then exit "$1"; fi
  if (($1 == NOT_FINISHED)); then requeue "a checkpoint is saved"; fi
  if [[ $reason == USR1 ]] && (($1 == KILLED_BY_USR1)); then requeue "training had not begun"; fi
  exit "$1"
}
