"""The token cache, which stores rendered and tokenized tasks for random access."""
