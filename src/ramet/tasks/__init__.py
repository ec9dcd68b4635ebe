"""Tasksets."""
