"""SGFormer as a trainable torch module, and the operations that make its training fast.

Belongs here: code with gradients. Does not belong here: inference, which is numpy only (`request_time`).
"""
