"""Tasksets, and how they are played, judged and validated."""
