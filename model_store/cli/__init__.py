"""The `sgf-models` command: its options, its commands and what they print."""
