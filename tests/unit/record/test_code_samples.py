"""Samples of the training thread: which lines they name, and when they are taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch

from ddpprof.model import CodeSamples
from ddpprof.record.events import EVENTS
from ddpprof.record.script_lines import CodeSampler


@pytest.fixture(autouse=True)
def training_thread() -> Iterator[None]:
    before, EVENTS.training_thread = EVENTS.training_thread, threading.get_ident()
    yield
    EVENTS.training_thread = before


def sleeps(seconds: float) -> None:
    time.sleep(seconds)


def counts(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def multiplies(seconds: float) -> None:
    layer, end = torch.nn.Sequential(torch.nn.Linear(200, 200)), time.monotonic() + seconds
    while time.monotonic() < end:
        layer(torch.ones(200, 200))


def sampled(*work: object) -> CodeSamples:
    sampler = CodeSampler()
    sampler.watch(True)
    for one in work:
        assert callable(one)
        one(0.2)
    sampler.watch(False)
    made = sampler.facts()["code_samples"]
    assert isinstance(made, CodeSamples)
    return made


def taken_s(samples: CodeSamples, function: str, is_in_framework: bool = False) -> float:
    """Return the time of the samples of a function's lines."""
    took_us = 0
    for begin, end, place in zip((0, *samples.ends_us), samples.ends_us, samples.places, strict=False):
        if place >= 0 and samples.lines[place].endswith(f" in {function}"):
            took_us += (end - begin) * (samples.is_in_framework[place] is is_in_framework)
    return took_us / 1e6


def test_time_is_given_to_the_lines_that_take_it() -> None:
    samples = sampled(sleeps, counts)
    assert taken_s(samples, "sleeps") == pytest.approx(0.2, abs=0.05)
    assert taken_s(samples, "counts") == pytest.approx(0.2, abs=0.05)


def test_functions_of_pytorch_are_told_apart_from_code_of_the_script() -> None:
    samples = sampled(multiplies)
    assert taken_s(samples, "multiplies", is_in_framework=True) > taken_s(samples, "multiplies")


def differentiates(seconds: float) -> None:
    weight, end = torch.ones(200, 200, requires_grad=True), time.monotonic() + seconds
    while time.monotonic() < end:
        loss = (weight @ weight @ weight).sum()
        torch.autograd.grad(loss, weight)


def test_lines_that_run_a_backward_pass_are_told_apart() -> None:
    """They are the lines of `grad` or `backward`, not those before it in the same function."""
    samples = sampled(differentiates)
    places = [*zip(samples.lines, samples.runs_backward, strict=True)]
    (runs,) = {line for line, runs_backward in places if runs_backward}
    assert any(line != runs for line, _ in places)
    first = differentiates.__code__.co_firstlineno
    assert runs == f"{__file__}:{first + 4} in differentiates"


def of_library(file: str, code: str) -> Callable[[float], None]:
    """Return the function `work` of a module that pretends to be this file."""
    names: dict[str, Any] = {"time": time}
    exec(compile(code, f"/usr/lib/python3/site-packages/{file}", "exec"), names)
    return cast("Callable[[float], None]", names["work"])


@pytest.mark.parametrize(
    ("file", "is_metric"),
    [("torchmetrics/metric.py", True), ("sklearn/metrics/_ranking.py", True), ("sklearn/cluster/_kmeans.py", False)],
)
def test_libraries_for_metrics_are_told_apart(file: str, is_metric: bool) -> None:
    sleep = of_library(file, "def work(seconds):\n    time.sleep(seconds)")

    def computes(seconds: float) -> None:
        sleep(seconds)

    samples = sampled(computes, sleeps)
    of_metrics = {
        line.rpartition(" ")[2]: found for line, found in zip(samples.lines, samples.computes_metrics, strict=True)
    }
    assert of_metrics["computes"] is is_metric
    assert of_metrics["sleeps"] is False


def test_it_samples_only_while_it_is_enabled() -> None:
    sampler = CodeSampler()
    assert sampler.facts() == {}
    sampler.watch(False)
    sampler.watch(True)
    sleeps(0.05)
    sampler.watch(False)
    sleeps(0.02)  # a sample may have been under way
    number = len(sampler.facts()["code_samples"].places)
    sleeps(0.05)
    assert len(sampler.facts()["code_samples"].places) == number
    assert "ddpprof-sampler" not in [one.name for one in threading.enumerate()]


def test_a_second_window_replaces_the_first() -> None:
    sampler = CodeSampler()
    for work in (sleeps, counts):
        sampler.watch(True)
        work(0.05)
        sampler.watch(False)
    samples = sampler.facts()["code_samples"]
    assert taken_s(samples, "sleeps") == 0
    assert taken_s(samples, "counts") > 0
