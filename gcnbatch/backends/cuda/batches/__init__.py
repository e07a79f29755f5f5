"""Batches of a data set on the device: resident, or streamed from the host."""
