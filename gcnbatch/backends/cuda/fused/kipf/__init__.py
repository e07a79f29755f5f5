"""The fused epoch of Kipf's GCN on one graph."""
