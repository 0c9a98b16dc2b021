"""Equations solved by networks under boundary and initial conditions, beside published numbers."""
