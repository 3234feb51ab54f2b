"""The tables of the paper, computed again and compared."""
