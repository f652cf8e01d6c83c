"""Count the modules on each road → recordings/roads.json.

python analyses/roads/collect.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from count import read_roads, recorded_roads
from study import as_json, begin_recording

STUDY = Path(__file__).resolve().parent


def main() -> None:
    roads = {"recorded": recorded_roads(), "read": read_roads()}
    (begin_recording(STUDY) / "roads.json").write_text(as_json(roads), encoding="utf-8")


if __name__ == "__main__":
    main()
