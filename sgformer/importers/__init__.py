"""Weights of other implementations of SGFormer: PyTorch Geometric's and the authors'.

Belongs here: names, layouts and configurations of others. Does not belong here: files (`model_store`).
"""
