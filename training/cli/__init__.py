"""The `sgf-train` command: its options, its commands, its events and the demo's proof."""
