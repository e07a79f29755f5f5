"""Adjacency products (SpMM) on a device: kernels, geometry, and the table that chooses a kernel."""
