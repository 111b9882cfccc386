"""What `formation build examples/hello` packs."""

import os

print(f"{os.environ.get('GREETING', 'hello')}, world")
