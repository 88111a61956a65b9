"""Tasks and mixtures: prompts, plain text, translation. `mixtures` is where to enter."""
