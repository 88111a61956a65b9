"""The commands of `python -m mtf`, each of which is a module or a package."""
