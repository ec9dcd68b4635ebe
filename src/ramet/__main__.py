"""`python -m ramet`."""

from ramet.cli.main import main

if __name__ == "__main__":
    main()
