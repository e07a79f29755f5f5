"""The fused backend: a training step in a few launches, captured once and replayed as one graph.

`stack` says what is computed, `data` holds the set on the device and plans epochs, `step` lists the launches of a
step, `graph` captures and replays them, `engine` puts them together; for Kipf's GCN on one graph `kipf_data`,
`kipf_step` and `kipf` do. ``cuda_src/fused/FUSED.md`` follows a step through its kernels.
"""
