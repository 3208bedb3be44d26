# shellcheck shell=bash
# A vLLM server on the node of a job; synth.sbatch and eval.sbatch source this from the checkout.

server=""
log=""
url=""

say() { printf '%s: %s\n' "${SLURM_JOB_ID:-job}" "$*" >&2; }

# Waits half a second, or until a signal comes. `wait -n` would do, but misses a process that has ended just before.
pause() {
  sleep 0.5 &
  wait $! || true
}

need_programs() {
  local program
  for program in "$@"; do
    if ! type -P "$program" >/dev/null; then
      say "error: $program: no such program; set SERVER_COMMAND or PYTHON"
      exit 2
    fi
  done
}

# start_server COMMAND MODEL TENSOR_PARALLEL PYTHON LOG ARGUMENT...: sets $server, which leads a process group, $log and $url.
start_server() {
  local command=$1 model=$2 parallel=$3 python=$4 port
  log=$5
  shift 5
  mkdir -p "$(dirname "$log")"
  # A requeued job finds its records made with the same endpoint: the port follows the job's number where it is free.
  port=$("$python" -c 'import socket, sys
for port in (20000 + int(sys.argv[1]) % 10000, 0):
    try: s = socket.socket(); s.bind(("127.0.0.1", port)); print(s.getsockname()[1]); break
    except OSError: pass' "${SLURM_JOB_ID:-0}")
  url="http://127.0.0.1:$port"
  say "starting $model on port $port, tensor parallel $parallel; its log is $log"
  setsid "$command" serve "$model" --host 127.0.0.1 --port "$port" --tensor-parallel-size "$parallel" "$@" >"$log" 2>&1 &
  server=$!
}

stop_server() {
  local i
  if [[ -z $server ]]; then return 0; fi
  # The whole group: the server has workers, which hold the GPUs. Slurm itself waits 30 s before it kills.
  kill -TERM -- "-$server" 2>/dev/null || true
  for ((i = 0; i < 100; i++)); do
    kill -0 -- "-$server" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL -- "-$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
}

server_died() {
  say "error: the server ended; the last lines of $log:"
  tail -n 20 "$log" >&2 || true
}

# await_server PYTHON SECONDS: returns when the server is healthy, or when $reason says that the job has to end.
await_server() {
  local python=$1 patience=$2 begin=$SECONDS
  until "$python" -c 'import sys, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(sys.argv[1], timeout=5)' \
    "$url/health" >/dev/null 2>&1; do
    if [[ -n ${reason:-} ]]; then return 0; fi
    if ! kill -0 "$server" 2>/dev/null; then
      server_died
      exit 1
    fi
    if ((SECONDS - begin >= patience)); then
      say "error: the server is not healthy after $patience s; see $log and HEALTH_SECONDS"
      exit 1
    fi
    sleep 1
  done
  say "the server is healthy after $((SECONDS - begin)) s"
}
