"""The CUDA backends ``batched`` and ``nonbatched`` (`entry`), and ``fused`` on top of them (`fused.entry`).

`runtime` calls PyCUDA; `ops`, `spmm` and `spgemm` launch kernels; `batches` copies data to the device.
"""
