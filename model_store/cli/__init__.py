"""`sgf-models`: its commands, and what the command lines of all packages share (`terminal`).

Rules of the store do not belong here: they are in versions/ and publish/.
"""
