"""`python -m mlcil` runs the command line."""

from .core.interruption import install


def main() -> None:
    """Run the command line, with an answer to Ctrl-C from the first moment on."""
    install()
    from .cli.app import main as run_command

    run_command()


if __name__ == "__main__":
    main()
