"""Crafting."""
