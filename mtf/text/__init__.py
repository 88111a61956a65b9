"""Text to token ids and back: vocabularies and normalization."""
