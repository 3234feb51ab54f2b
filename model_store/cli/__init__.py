"""`sgf-models`: its commands, and what the command lines of all packages share (`parser`, `terminal`).

Rules of the store do not belong here: they are in versions/ and publish/.
"""
