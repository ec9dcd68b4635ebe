"""The demonstrations that come with the package: a training from scratch, and a scripted tree."""
