"""Damage files at random and open them, for some minutes: python tests/support/fuzz.py MINUTES

Mutants are numbered from a random number on; a finding can be reproduced by its number (`mutants.py`,
`mutants_of_files.py`). The exit code is 1 if anything was found.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from functools import partial

import mutants
import mutants_of_files

PART = 200


def main() -> int:
    end, begin = time.monotonic() + 60 * float(sys.argv[1]), random.randrange(10**9)
    num_done = num_found = 0
    of_runs = partial(mutants.complaints, recorded=mutants_of_files.SAMPLE)
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        while time.monotonic() < end:
            parts = [range(begin + number * PART, begin + (number + 1) * PART) for number in range(os.cpu_count() or 1)]
            waiting = [pool.map_async(find, parts, chunksize=1) for find in (of_runs, mutants_of_files.complaints)]
            for complaint in (text for found in waiting for texts in found.get() for text in texts):
                num_found += 1
                print(complaint, flush=True)
            begin, num_done = begin + len(parts) * PART, num_done + 2 * len(parts) * PART
            print(f"{num_done} mutants, {num_found} found", flush=True)
    return int(num_found > 0)


if __name__ == "__main__":
    sys.exit(main())
