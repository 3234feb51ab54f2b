"""Writes a trained or imported model and its graph as the files of a snapshot.

Modules here may load torch. Version numbers and the live version belong in `versions`.
"""
