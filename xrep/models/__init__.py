"""Models: the part that is kept after training. ``xrep.models.model`` has their interfaces."""
