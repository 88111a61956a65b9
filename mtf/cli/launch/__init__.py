"""`python -m mtf launch TARGET`: starts the processes of a run."""
