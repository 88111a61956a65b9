"""Runs the recipe with four combinations of two settings, as one experiment."""

import itertools

import nemo_run as run
import settings

if __name__ == "__main__":
    with run.Experiment("sweep") as experiment:
        for batch_size, train_steps in itertools.product((8, 16), (10, 20)):
            task = settings.recipe()
            task.batch_size, task.train_steps = batch_size, train_steps
            experiment.add(task, executor=run.LocalExecutor(), name=f"b{batch_size}_s{train_steps}")
        experiment.run(tail_logs=True)
