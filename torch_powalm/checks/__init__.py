"""Checks of settings and of saved state, shared by both routes."""
