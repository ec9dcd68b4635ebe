"""The command line: parsing and calling."""
