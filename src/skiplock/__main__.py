"""`python -m skiplock`: the command line."""

from skiplock.cli import main

if __name__ == "__main__":
    main()
