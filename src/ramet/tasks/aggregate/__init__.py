"""Counting over long texts."""
