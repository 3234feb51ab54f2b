"""From a trained or imported model and its graph to the files of a snapshot.

Everything here may load torch. Nothing here knows which version is live (`versions`).
"""
