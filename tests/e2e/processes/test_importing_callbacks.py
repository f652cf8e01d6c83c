"""Callbacks are imported without the framework of another."""

from __future__ import annotations

import subprocess
import sys


def test_importing_it_imports_no_framework() -> None:
    frameworks = "{'torch', 'lightning', 'transformers'}"
    program = f"import sys, ddpprof; ddpprof.integrations; assert not {frameworks} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
