"""One process of a meeting. Run by test_meeting.py.

python -m tests.cluster.one_of_meeting PROCESS NUM_PROCESSES PORT WHAT…

The processes meet, and then do what WHAT says for them; the last WHAT is for all that follow.
"""

from __future__ import annotations

import os
import sys
import time

from mtf.cluster import meeting as meeting_lib
from mtf.cluster.meeting import Meeting
from mtf.cluster.places import Place
from mtf.errors import UserError


def main() -> None:
    """Meets the others."""
    meeting_lib._QUIET = float(os.environ.get("QUIET", meeting_lib._QUIET))
    process, num_processes, port = (int(text) for text in sys.argv[1:4])
    whats = sys.argv[4:]
    what = whats[min(process, len(whats) - 1)]
    if what == "absent":
        return
    index = 1 if what == "twice" else process
    place = Place(index, num_processes, f"127.0.0.1:{port}", "the test")
    config = ["a = 1", "b = 2" if what != "differ" else "b = 3"]
    try:
        meeting = Meeting(place, {"the config": config}, {"number": process}, patience=3.0)
    except UserError as error:
        print(f"error: {error}", flush=True)
        sys.exit(2)
    print(f"met, number {meeting.shared['number']}", flush=True)
    if what == "die":
        os.kill(os.getpid(), 9)
    if what == "fail":
        meeting.leave("the disk is full")
        os._exit(1)
    if what == "wait":
        time.sleep(100)
    meeting.leave()
    print("left", flush=True)


if __name__ == "__main__":
    main()
