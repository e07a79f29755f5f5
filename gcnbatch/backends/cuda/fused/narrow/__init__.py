"""The narrow form: fused steps of models with narrow layers."""
