"""``python -m ddpprof`` is the command line."""

import sys

from ddpprof.cli import main

sys.exit(main())
