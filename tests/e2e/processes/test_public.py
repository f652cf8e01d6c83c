"""What `import ddpprof` imports."""

from __future__ import annotations

import subprocess
import sys


def test_importing_it_imports_nothing_heavy() -> None:
    program = "import sys, ddpprof; assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
