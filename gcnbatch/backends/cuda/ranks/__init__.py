"""Models that several ranks train together, each on its GPU: operations on parts of global batches."""
