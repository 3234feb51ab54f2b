"""What operators see: the log and the metrics.

Functions here take plain values. This folder imports no other module of the service, so that every module can use it.
"""
