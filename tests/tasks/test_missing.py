"""Missing datasets are listed once for each thing to do about them."""

from __future__ import annotations

from mtf.data.tasks.missing import reasons


def _missing(name: str, repository: str) -> str:
    return (
        f"{name}, split train, is missing: the local mirror does not contain "
        f"here/{name}/train.parquet. The Hugging Face hub cannot provide {repository}. To use a "
        f"local copy, put it at DIR/{name}/train.parquet and set MTF_DATA_DIR=DIR"
    )


def test_datasets_that_are_missing_for_the_same_reason_share_a_line() -> None:
    names = {f"d{i}/s": f"owner{i}/d{i}" for i in range(7)}
    missing = {
        f"{name}_task{i}": _missing(name, hub) for name, hub in names.items() for i in (1, 2)
    }
    missing["other"] = "it has no test split"
    first, second = reasons(missing)
    assert first == (
        "d0/s_task1 and 13 others: 7 datasets (d0/s, d1/s, d2/s, d3/s, d4/s, …) are missing: the "
        "local mirror does not contain here/NAME/SPLIT.parquet. The Hugging Face hub cannot "
        "provide NAME. To use a local copy, put it at DIR/NAME/SPLIT.parquet and set "
        "MTF_DATA_DIR=DIR"
    )
    assert second == "other: it has no test split"


def test_one_dataset_keeps_its_own_reason() -> None:
    reason = _missing("xsum", "EdinburghNLP/xsum")
    assert reasons({"a": reason, "b": reason}) == [f"a and 1 others: {reason}"]
