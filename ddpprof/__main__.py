"""Run the command line for ``python -m ddpprof``."""

import sys

from ddpprof.cli import main

sys.exit(main())
