"""Run directories in stores with `--engine t5x`, as far as they need no T5X."""

from absl import logging

from mtf.storage.remote import RemotePath
from mtf.t5x.logs import LOG_FILE, logged


def test_the_log_of_t5x_is_in_the_store_at_the_end(store: RemotePath) -> None:
    run = store / "run"
    with logged(run):
        logging.info("step 3 of 5")
        logging.info("[3] collection=train loss=2.5, accuracy=0.5")
    lines = (run / LOG_FILE).read_text(encoding="utf-8").splitlines()
    assert [line.partition("INFO ")[2] for line in lines] == [
        "step 3 of 5",
        "[3] collection=train loss=2.5, accuracy=0.5",
    ]
