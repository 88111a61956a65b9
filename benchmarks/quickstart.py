"""Runs the quickstart, and puts its last lines and its curves into README.md. Prints its duration.

python benchmarks/quickstart.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "images" / "quickstart.png"
BLOCK = re.compile(r"(?<=quickstart.py -->\n```text\n).*?(?=```)", re.DOTALL)


def main() -> None:
    """Runs the recipe, and writes README.md and the picture."""
    run = "runs/quickstart"
    command = [sys.executable, "-m", "mtf.run", "recipes.quickstart", "--set", f"model_dir={run}"]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        output = subprocess.check_output(command, cwd=folder, env=environment, text=True)
        print(f"{time.perf_counter() - start:.0f} s")
        shutil.copy(Path(folder, run, "loss.png"), PICTURE)
    end = re.sub(r".*?\n(?=[^\n]*→)", "", output, count=1, flags=re.DOTALL)
    README.write_text(BLOCK.sub(lambda _: end, README.read_text("utf-8"), count=1), "utf-8")


if __name__ == "__main__":
    main()
