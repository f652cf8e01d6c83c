"""Entry point of ``python -m ddpprof``: the command line."""

import sys

from ddpprof.cli import main

sys.exit(main())
