"""Sparse times sparse (SpGEMM) on a device."""
