"""Certificates: bounds on the constraints of a trained model for data that it has not seen."""
