"""What operators see: the log, the metrics and the capacity of the machine.

Takes plain values from everywhere and imports no other folder of the service.
"""
