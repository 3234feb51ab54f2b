"""SGFormer as a trainable torch module, with fast operations whose gradients are written by hand.

Belongs here: code with gradients. Does not belong here: inference, which is numpy only (`request_time`).
"""
