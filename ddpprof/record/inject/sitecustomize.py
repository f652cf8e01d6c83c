"""Inject ddpprof into every Python process of the job. Nothing happens until certain modules are imported."""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_GIVE_BACK_RANK = "ddpprof.record.torchrun", "give_back_rank"
_TARGETS = {
    "torch.nn.parallel.distributed": ("ddpprof.record.api", "install"),
    "torch.distributed.elastic.multiprocessing.errors": ("ddpprof.record.torchrun", "listen_to_torchrun"),
    "lightning.fabric.plugins.environments.lightning": _GIVE_BACK_RANK,
    "lightning_fabric.plugins.environments.lightning": _GIVE_BACK_RANK,
    "multiprocessing.popen_fork": ("_ddpprof_ends", "install_multiprocessing"),
    "subprocess": ("_ddpprof_ends", "install_subprocess"),
}
"""module of PyTorch, Lightning or Python → module and name of the function that is called after the module has been
imported
"""


class _PatchOnImport(importlib.abc.MetaPathFinder):
    """Finder for one module. Delegates to the other finders, and calls a function once the module has been executed."""

    def __init__(self, target, module, function):
        self._target, self._module, self._function = target, module, function

    def find_spec(self, name, path=None, target=None):
        if name != self._target:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _run_afterwards(spec.loader, self._handle)
        return spec

    def _handle(self, imported):
        getattr(importlib.import_module(self._module), self._function)(imported)


def _run_afterwards(loader, handle):
    exec_module = loader.exec_module

    def exec_then_patch(module):
        exec_module(module)
        try:
            handle(module)
        except Exception as error:
            if sys.stderr is not None:
                sys.stderr.write(
                    f"ddpprof: cannot record this process ({sys.executable}): {error}. Training continues.\n"
                )

    loader.exec_module = exec_then_patch


def _chain_to_next_sitecustomize():
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _say_that_it_is_here(note):
    with contextlib.suppress(OSError):  # on another machine, in a container, or after ddpprof has ended
        os.close(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


if "DDPPROF_SETTINGS" in os.environ:
    if "DDPPROF_REACHED" in os.environ:
        _say_that_it_is_here(os.environ["DDPPROF_REACHED"])
    import _ddpprof_ends

    for target, handler in _TARGETS.items():
        if target not in sys.modules:
            sys.meta_path.insert(0, _PatchOnImport(target, *handler))
    note = os.environ.pop("DDPPROF_EXPLAIN_RANK", None)
    if note:
        _ddpprof_ends.explain_missing_rank(note)
    agent = os.environ.pop("DDPPROF_AGENT", None)
    if agent and "TORCHELASTIC_RUN_ID" in os.environ:
        try:
            _ddpprof_ends.end_with_agent(agent)
        except (ImportError, ValueError, OSError) as error:
            sys.stderr.write(f"ddpprof: this rank will not end if torchrun is killed: {error}. Training continues.\n")
_chain_to_next_sitecustomize()
