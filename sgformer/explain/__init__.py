"""Why a node has its answer: the parts of its logits, and the effects of its edges and features.

Belongs here: splits of an answer, and answers for variants of a node, on numpy alone.
Does not belong here: ids and names of users, limits of a service, HTTP.
"""
