"""Embeddings of molecules by trained networks, with fingerprints and descriptors, as a table and as a map."""
