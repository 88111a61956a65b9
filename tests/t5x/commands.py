"""Runs commands of `mtf.run`, a JSON list of their arguments, in one process.

python -m tests.t5x.commands NUM_DEVICES FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax

from mtf.run import main

if __name__ == "__main__":
    assert jax.device_count() == int(sys.argv[1])
    for arguments in json.loads(Path(sys.argv[2]).read_text()):
        assert main(arguments) == 0, arguments
