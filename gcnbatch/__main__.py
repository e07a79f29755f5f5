"""Entry point of ``python -m gcnbatch``: the same as the ``gcnbatch`` command."""

from gcnbatch.cli.app import main

if __name__ == "__main__":
    main()
