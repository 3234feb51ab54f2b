"""`sgf-models`: its commands, and what the command lines of all packages share (`terminal`)."""
