"""Prints the table of docs/t5x.md: how far mtf's losses are from T5X's recorded ones.

XLA_FLAGS= python -m tests.golden.table    # with the programs that users compile
"""

from __future__ import annotations

from tests.golden import cases, comparing, engine, recorded


def main() -> None:
    """Runs every case on one and on several devices."""
    differences: dict[str, list[float]] = {name: [] for name in cases.CASES}
    for number in recorded.NUM_DEVICES:
        for name, losses in engine.losses(number, cases.CASES).items():
            theirs = recorded.read(name)["losses"][str(number)]
            found = comparing.largest_difference(cases.CASES[name], losses, theirs)
            differences[name].append(found)
    header = " | ".join(f"{n} device{'s' * (n > 1)}" for n in recorded.NUM_DEVICES)
    print(f"| case | settings | {header} |\n|---|---|{'---|' * len(recorded.NUM_DEVICES)}")
    for name, found in differences.items():
        row = (f"`{name}`", settings(cases.CASES[name]), *(f"{x:.1e}" for x in found))
        print("|", " | ".join(row), "|")


def settings(case: cases.Case) -> str:
    """Returns what a case sets, for the table."""
    values = {**case.model, **case.optimizer, **(case.adamw or {})}
    if case.schedule != cases.Case().schedule:
        values |= {"factors": case.schedule["factors"]}
    if case.network is cases.T5_1_0:
        values |= {"logits_via_embedding": True, "mlp_activations": "relu"}
    if case.network["dtype"] != "float32":
        values["dtype"] = case.network["dtype"]
    if case.num_microbatches > 1:
        values["num_microbatches"] = case.num_microbatches
    if case.packed:
        values["packed"] = True
    shown = ", ".join(f"`{name}={value}`" for name, value in values.items())
    if case.adamw is not None:
        shown = f"AdamW, {shown}"
    return f"{shown}; T5X's loss is {case.ratio:g} × mtf's" if case.ratio != 1.0 else shown


if __name__ == "__main__":
    main()
