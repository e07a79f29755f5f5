"""The page and the model card of a finished run."""
