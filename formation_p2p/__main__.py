"""`python -m formation_p2p` is `formation`."""

from formation_p2p.cli.main import app

app(prog_name="formation")
