"""Tasks and mixtures: prompts, plain text, translation. `mixtures` finds them by name."""
