"""The log and the metrics, for operators.

Functions here take plain values. This folder imports no other module of the service, so that every module can use it.
"""
