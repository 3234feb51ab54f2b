"""From a trained model to a published, judged and perhaps live version.

Does not belong here: optimisation (`fit`) and pages for people (`report`).
"""
