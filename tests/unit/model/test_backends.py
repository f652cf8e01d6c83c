"""The tables of backends and devices: names are unique, and what is not in them behaves like most."""

from __future__ import annotations

from ddpprof.model.backends import BACKENDS, DEVICES, KERNELS, KNOWN, Compression, backend_of, standard_name


def test_every_name_stands_for_one_row() -> None:
    assert len(set(KNOWN)) == len(KNOWN)
    assert len(set(KERNELS)) == len(KERNELS)
    assert len({one.name for one in DEVICES}) == len(DEVICES)


def test_nccl_has_several_names() -> None:
    assert {backend_of(name).name for name in ("nccl", "nccl2", "nccl-lazy")} == {"nccl"}
    assert (standard_name("nccl2"), standard_name("gloo"), standard_name("mine")) == ("nccl", "gloo", "mine")


def test_gloo_does_two_all_reduces_at_once() -> None:
    assert [backend_of(name).num_at_once for name in ("gloo", "nccl", "mpi")] == [2, 1, 1]


def test_an_unknown_backend_is_like_most() -> None:
    unknown = backend_of("mine")
    assert backend_of(None) == unknown
    assert (unknown.num_at_once, unknown.halving, unknown.runs_on_host) == (1, Compression.FP16, False)


def test_backends_either_have_kernels_or_run_on_the_host() -> None:
    assert all(bool(one.kernels) is not one.runs_on_host for one in BACKENDS)
