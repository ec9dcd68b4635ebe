"""The demonstrations that come with the package."""
