"""Runs the last experiment again."""

import nemo_run as run

if __name__ == "__main__":
    with run.Experiment.from_title("train") as experiment:
        experiment.reset()
        experiment.run(sequential=True, tail_logs=True)
