"""``python -m patchlight``: the command."""

from patchlight.cli.main import main

if __name__ == "__main__":
    main()
