"""`python -m outrider`: the same as the `outrider` command."""

from outrider.cli.main import main

if __name__ == "__main__":
    main()
