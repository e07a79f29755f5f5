"""The fused step of narrow layers."""
