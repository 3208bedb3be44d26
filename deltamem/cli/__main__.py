"""``python -m deltamem.cli`` is the command `deltamem`."""

from deltamem.cli.app import main

if __name__ == "__main__":
    main()
