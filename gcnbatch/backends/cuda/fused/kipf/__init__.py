"""The Kipf form: the fused step of the two-layer GCN on one graph."""
