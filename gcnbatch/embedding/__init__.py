"""Vectors of molecules for other programs: what a network makes of them, fingerprints, descriptors; a map of them."""
