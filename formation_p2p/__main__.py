"""`python -m formation_p2p` is `formation`."""

from formation_p2p.command.start import main

if __name__ == "__main__":
    main()
