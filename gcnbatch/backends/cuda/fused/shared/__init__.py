"""What several forms of the fused step share."""
