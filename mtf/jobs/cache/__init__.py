"""The job that writes a token cache."""
