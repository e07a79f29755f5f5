"""The kernel and the trees of a mixture on a device: similarities, the inverse of their matrix, and forests."""
