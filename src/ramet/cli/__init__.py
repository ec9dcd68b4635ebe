"""The command line: each module parses the arguments of one verb and calls the library."""
