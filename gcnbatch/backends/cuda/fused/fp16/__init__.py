"""The fused step of wide layers in one launch, with fp16 products."""
