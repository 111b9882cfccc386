"""`python -m formation_p2p` is `formation`."""

from formation_p2p.cli.main import app

if __name__ == "__main__":
    app(prog_name="formation")
