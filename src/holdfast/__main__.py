"""The ``holdfast`` command, run as ``python -m holdfast``."""

from holdfast.cli.main import run

if __name__ == "__main__":
    run()
