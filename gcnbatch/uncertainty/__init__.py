"""Uncertainty of predictions: probabilities calibrated on validation rows, conformal intervals and class sets."""
