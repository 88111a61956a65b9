"""The token cache, which holds rendered and tokenized tasks for random access."""
