"""The fused step of wide layers: tensor cores in TF32 and 3xTF32."""
