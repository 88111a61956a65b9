"""Text to token ids and back: vocabularies, and what is done to text before."""
