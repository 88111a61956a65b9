"""One process of a rendezvous. Run by test_heartbeat.py.

python -m tests.processes.one_of_several PROCESS NUM_PROCESSES PORT WHAT…

The processes compare their configs, and then do what WHAT says for them; the last WHAT is for all
that follow.
"""

from __future__ import annotations

import functools
import os
import sys
import time

from mtf.base import signals
from mtf.base.errors import RunError
from mtf.base.processes import rendezvous as rendezvous_lib
from mtf.base.processes.process_info import ProcessInfo
from mtf.base.processes.rendezvous import Rendezvous
from mtf.cli.command import exit_status


def main() -> None:
    """Joins the others."""
    rendezvous_lib._SILENCE = 5
    process, num_processes, port = (int(text) for text in sys.argv[1:4])
    whats = sys.argv[4:]
    what = whats[min(process, len(whats) - 1)]
    if what == "absent":
        return
    arguments = {
        "coordinator_address": f"127.0.0.1:{port}",
        "num_processes": num_processes,
        "process_id": process,
        "cluster_detection_method": "deactivate",
    }
    rendezvous = Rendezvous(ProcessInfo("the test", arguments), patience=5.0)

    def work() -> None:
        rendezvous.compare({"the config": ["a = 1", "b = 2" if what != "differ" else "b = 3"]})
        print(f"joined, number {rendezvous.broadcast('number', process)}", flush=True)
        if what == "die":
            time.sleep(2)  # The other processes have read the names by then.
            os.kill(os.getpid(), 9)
        if what == "fail":
            raise RunError("the disk is full")
        if what == "wait":
            time.sleep(100)

    rendezvous.run(work, functools.partial(exit_status, only_shows=False))
    print("left", flush=True)
    sys.exit(signals.ending(0))


if __name__ == "__main__":
    main()
