"""The fused backend: a training step of ChemGCN in a few launches, captured once and replayed as one graph.

`stack` says what is computed, `data` holds the set on the device and plans epochs, `step` lists the launches of a
step, `graph` captures and replays them, `engine` puts them together. ``cuda_src/FUSED.md`` follows a step through its
kernels.
"""
