#!/bin/sh
# Runs one process of a run in tmux, so that it outlives the ssh session that starts it.
# mtf.launch copies this file to each host, with command.sh, which has the values of the run.
#
#   sh job.sh idle                   fails if the process runs
#   sh job.sh install                installs the packages of requirements.txt into env/
#   sh job.sh start [INDEX]          starts the process
#   sh job.sh follow [LINE] [LABEL]  prints its output from LINE until it ends, then how it ended
#   sh job.sh status [LABEL]         prints whether it runs, or how it ended
#   sh job.sh stop [SECONDS]         sends SIGTERM, so that the run saves; SIGKILL after SECONDS
#   sh job.sh run                    is what tmux runs

cd "$(dirname "$0")" || exit 1
here=$PWD
action=$1
. ./command.sh

fail() {
    echo "$*" >&2
    exit 1
}

# Attributes that Cloud TPU sets on each of its virtual machines.
metadata() {
    url=http://metadata.google.internal/computeMetadata/v1/instance/attributes
    curl -sf --retry 5 -H 'Metadata-Flavor: Google' "$url/$1" ||
        fail "The metadata server does not know $1; is this a TPU VM?"
}

find_place() {
    if [ "$place" = tpu ]; then
        index=$(metadata agent-worker-number) || exit 1
        endpoints=$(metadata worker-network-endpoints) || exit 1 # x:x:ADDRESS,x:x:ADDRESS,…
        first=${endpoints%%,*}
        MTF_COORDINATOR_ADDRESS=${first##*:}:61438
        MTF_PROCESS_COUNT=$(echo "$endpoints" | tr , '\n' | grep -c .)
        export MTF_COORDINATOR_ADDRESS MTF_PROCESS_COUNT
    elif [ "$action" = start ]; then
        index=$1
    else
        index=$(cat index 2>/dev/null)
    fi
    MTF_PROCESS_INDEX=$index
    export MTF_PROCESS_INDEX
    session=mtf-$name-$index
}

runs() {
    tmux -L mtf has-session -t "=$session" 2>/dev/null
}

how_it_is() {
    if [ -s status ]; then
        echo "mtf.launch: process $index ended with status $(cat status)"
    elif runs; then
        echo "mtf.launch: process $index runs"
    elif [ -e log ]; then
        echo "mtf.launch: process $index was killed, or its machine has restarted"
    else
        echo "mtf.launch: process $index was never started"
    fi
}

with_label() {
    sed -u "s/^/[$1] /"
}

shift
case $action in
idle)
    find_place "$@"
    if runs; then
        fail "The job $name runs here already. Stop it, or choose another name."
    fi
    ;;
install)
    cmp -s requirements.txt env/installed.txt && exit 0
    PATH=$HOME/.local/bin:$PATH
    command -v uv >/dev/null ||
        PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv ||
        fail "uv could not be installed. Install it: https://docs.astral.sh/uv"
    rm -rf env
    uv venv --quiet --python "$python_version" env &&
        uv pip install --quiet --python env/bin/python -r requirements.txt &&
        cp requirements.txt env/installed.txt ||
        fail "The packages could not be installed."
    ;;
start)
    find_place "$@"
    command -v tmux >/dev/null || fail "tmux is missing. Install it: apt-get install tmux"
    if runs; then
        fail "The job $name runs here already. Stop it, or choose another name."
    fi
    echo "$index" >index
    rm -f status shell.pid process.pid
    if [ -e log ]; then
        mv log log.before
    fi
    : >log
    tmux -L mtf new-session -d -s "$session" -c "$here" sh job.sh run || fail "tmux failed."
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -s shell.pid ] && exit 0
        sleep 0.5
    done
    fail "The process did not start within 5 s."
    ;;
run)
    find_place "$@"
    echo $$ >shell.pid
    run_command >>log 2>&1 &
    echo $! >process.pid
    wait $!
    echo $? >status.new
    mv status.new status
    ;;
follow)
    find_place "$@"
    {
        if [ -s shell.pid ]; then
            tail -n "+${1:-1}" -s 0.2 --pid="$(cat shell.pid)" -F log 2>/dev/null
        fi
        [ -s status ] || sleep 1 # tmux notices the end a little later.
        how_it_is
    } | with_label "${2:-worker $index}"
    ;;
status)
    find_place "$@"
    how_it_is | with_label "${1:-worker $index}"
    ;;
stop)
    find_place "$@"
    runs && kill -TERM "$(cat process.pid)" 2>/dev/null
    left=${1:-300}
    while runs; do
        if [ "$left" -le 0 ]; then
            kill -KILL "$(cat process.pid)" 2>/dev/null
        fi
        if [ "$left" -le -10 ]; then
            tmux -L mtf kill-session -t "=$session"
        fi
        left=$((left - 1))
        sleep 1
    done
    how_it_is | with_label "${2:-worker $index}"
    ;;
*)
    fail "unknown action: $action"
    ;;
esac
