"""Imports weights of other implementations of SGFormer: PyTorch Geometric's and the authors'.

Belongs here: the tensor names and settings of other implementations. Does not belong here: reading files (`model_store`).
"""
