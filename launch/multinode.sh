#!/usr/bin/env bash
# Runs a recipe on the nodes that it asks for: through Slurm, over ssh, or as one of several that a person starts.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash launch/multinode.sh RECIPE [--dry-run | --preflight] [--set KEY=VALUE ...] [--shrink] [--fresh] [--runs FOLDER]

Start it in one of three ways. The recipe says how many nodes and GPUs; they are checked against what is there.

  in a Slurm allocation, once     sbatch --nodes=4 --gpus-per-node=8 launch/slurm.sbatch RECIPE, or in an salloc:
                                  bash launch/multinode.sh RECIPE
  over ssh, once, from anywhere   HOSTS=a,b,c,d bash launch/multinode.sh RECIPE, or HOSTFILE=file with a host a line.
                                  Each host has this folder at the same path, and PYTHON; ssh asks nothing (keys, known
                                  hosts). Ctrl-C ends all of them, and so does the death of this script.
  on each node, by hand           MASTER_ADDR=a bash launch/multinode.sh RECIPE; a is the first node's address

  --dry-run     what every node would run, in which environment, with how many GPUs, for how many GPU-hours; starts nothing
  --preflight   lets the nodes meet and prints what they find (versions, GPUs, memory, disk, ports, network); trains nothing

The runs folder (default: runs) must be on storage that all nodes see. Variables:
  MASTER_ADDR, MASTER_PORT   where the nodes meet (default: the first host; 29500, in Slurm by the job's number) and the next port
  NODE_RANK                  this node's number (default: Slurm's, HOSTS' order, or the first at MASTER_ADDR and then as they meet).
                             With it several can be tried on one machine: MASTER_ADDR=localhost, NODE_RANK=0 and 1
  GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME   the network interface, if it is not that of the route to MASTER_ADDR
  SSH_OPTIONS                more options for ssh, such as "-p 2222 -i key"
  PYTHON                     the interpreter (default: .venv/bin/python where it exists, else python3)

Exit code: 0 finished, 1 failed, 2 refused, 75 stopped with a checkpoint (the same command resumes), 130 interrupted.
TEXT
}

case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
  "")
    usage >&2
    exit 2
    ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z "${PYTHON:-}" ]]; then
  PYTHON=python3
  [[ -x .venv/bin/python ]] && PYTHON="$PWD/.venv/bin/python"
fi

verb=run
arguments=()
for argument in "$@"; do
  case "$argument" in
    --dry-run) exec "$PYTHON" -m launch nodes "$@" ;;
    --preflight) verb=preflight ;;
    *) arguments+=("$argument") ;;
  esac
done

# One host a line; refuses a recipe that needs another number of them. None: the recipe's nodes are not named here.
listed="$("$PYTHON" -m launch nodes --hosts "${arguments[@]}")"
mapfile -t hosts < <(printf '%s' "$listed")

# Every host's ssh reads from a pipe that this script alone holds open: what is written there are the names of signals for the
# launcher at the far end (launch/leash.py), and the pipe's end is its sign that nobody is here any more.
over_ssh() {
  local folder number name fd code one running told=""
  local -a pipes=() jobs=() options=()
  read -ra options <<<"${SSH_OPTIONS:-}"
  folder="$(mktemp -d)"
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$folder'" EXIT
  for number in "${!hosts[@]}"; do
    mkfifo "$folder/$number"
    exec {fd}<>"$folder/$number"
    pipes+=("$fd")
    NODE_RANK="$number" "$PYTHON" -m launch.leash --environment >&"$fd"
    (
      for fd in "${pipes[@]}"; do exec {fd}>&-; done
      one=0
      # in a session of its own: a Ctrl-C of the terminal must reach the launchers as a word, not break their connection
      setsid --wait ssh -T -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=3 "${options[@]}" \
        "${hosts[number]}" "cd $(printf %q "$PWD") && exec $(printf '%q ' "$PYTHON" -m launch.leash \
        "$PYTHON" -m launch "$verb" "${arguments[@]}")" || one=$?
      echo "$one" >"$folder/$number.code"
    ) <"$folder/$number" &
    jobs+=("$!")
  done
  tell() {
    for fd in "${pipes[@]}"; do printf '%s\n' "$1" >&"$fd"; done
  }
  for name in INT TERM HUP USR1; do
    # shellcheck disable=SC2064  # the name of now
    trap "tell SIG$name" "$name"
  done
  running=yes
  while [[ -n "$running" ]]; do
    running="" code=0
    for number in "${!hosts[@]}"; do
      if [[ -s "$folder/$number.code" ]]; then
        one="$(<"$folder/$number.code")"
      elif kill -0 "${jobs[number]}" 2>/dev/null; then
        running=yes
        continue
      else
        one=255
      fi
      if ((one == 255)) && [[ -z "$told" ]]; then
        echo "error: the ssh to ${hosts[number]} has ended: stopping the other nodes (SSH_OPTIONS has more options for it)" >&2
        told=yes
        tell SIGTERM
      fi
      ((one == 255)) && one=1
      ((code == 0)) && code=$one
    done
    sleep 0.3 &
    wait "$!" || true # a trap ends this wait, not a plain sleep
  done
  return "$code"
}

if [[ -n "${HOSTS:-}${HOSTFILE:-}" ]]; then
  export MASTER_ADDR="${MASTER_ADDR:-${hosts[0]##*@}}" MASTER_PORT="${MASTER_PORT:-29500}"
  over_ssh || exit
elif [[ -n "${SLURM_JOB_ID:-}" && ${#hosts[@]} -gt 1 ]]; then
  export MASTER_ADDR="${MASTER_ADDR:-${hosts[0]}}" MASTER_PORT="${MASTER_PORT:-$((20000 + 2 * (SLURM_JOB_ID % 4500)))}"
  # The launchers end each other in order when one of them fails: Slurm need not kill them, only not wait for ever.
  exec srun --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 --wait=150 \
    "$PYTHON" -m launch "$verb" "${arguments[@]}"
else
  exec "$PYTHON" -m launch "$verb" "${arguments[@]}"
fi
