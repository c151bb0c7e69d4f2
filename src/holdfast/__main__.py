"""`python -m holdfast` is the `holdfast` command."""

from holdfast.cli.main import run

if __name__ == "__main__":
    run()
