"""``python -m deltamem.command`` is the command `deltamem`."""

from deltamem.command.app import main

if __name__ == "__main__":
    main()
