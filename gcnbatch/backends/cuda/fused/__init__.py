"""The fused backend: many training steps of ChemGCN in one launch of a persistent kernel.

`stack` says what is computed, `data` holds the set on the device and plans epochs, `step` lists the launches of a
step, `persistent` runs many at a launch, `engine` puts them together. ``cuda_src/FUSED.md`` follows a step through its
kernels.
"""
