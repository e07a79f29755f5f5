"""Adjacency products on a device: kernels, geometry, and the table that chooses among them."""
