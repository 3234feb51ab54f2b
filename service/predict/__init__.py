"""From the bytes of a request to the bytes of its answer: parse, look up, batch, compute, encode.

Knows no HTTP beyond the two formats of an answer.
"""
