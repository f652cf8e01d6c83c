"""Why a trial failed: the script's own words, in what torchrun makes of them."""

import pytest

from ddpprof.experiments.last_error import last_error

TORCHRUN = """\
W1124 02:35:17.724000 25268 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1 closing signal
E1124 02:35:17.839000 25268 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
THREADS = """\
*****************************************
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being
*****************************************
"""
BOOM = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("odd")
ValueError: odd
"""
LOST = "[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:11174. This is typically caused by\n"


@pytest.mark.parametrize(
    ("output", "error"),
    [
        pytest.param(BOOM, "ValueError: odd", id="one-process"),
        pytest.param(BOOM + TORCHRUN, "ValueError: odd", id="torchrun"),
        pytest.param("".join(f"[rank1]: {line}\n" for line in BOOM.splitlines()) + LOST + TORCHRUN, "ValueError: odd",
                     id="the-other-rank-lost-it"),
        pytest.param("usage: train.py\ntrain.py: error: unrecognized arguments: --x\n" + TORCHRUN,
                     "train.py: error: unrecognized arguments: --x", id="argparse"),
        pytest.param("loss 3.5\nno data\n" + TORCHRUN, "no data", id="sys.exit"),
        pytest.param(LOST, LOST.removeprefix("[rank0]: ").strip(), id="only-a-lost-peer"),
        pytest.param(THREADS + TORCHRUN, "rank 1 ended with exit code 1, and printed nothing", id="os._exit"),
        pytest.param(TORCHRUN.replace(": 1)", ": -9)"),
                     "rank 1 was terminated by signal 9, and printed nothing", id="killed"),
        pytest.param(THREADS, "it printed nothing", id="torchrun-alone"),
        pytest.param("", "it printed nothing", id="nothing"),
    ],
)  # fmt: skip
def test_the_scripts_own_last_error_is_shown(output: str, error: str) -> None:
    assert last_error(output) == error
