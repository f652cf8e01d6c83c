"""``--vary``, ``--set`` and ``--strong``: from words to variants of a job."""

from __future__ import annotations

import inspect
import re

import pytest
from torch.nn.parallel import DistributedDataParallel

from ddpprof.errors import DdpprofError
from ddpprof.experiments.plan import Variant
from ddpprof.experiments.vary import DDP_ARGUMENTS, passed_on, shared_by, vary, with_settings

ONE = Variant(1)
SCRIPT = ("train.py",)


def test_an_option_of_the_script_is_added_to_its_arguments() -> None:
    small, large = vary(ONE, ["--batch-size=32,64"], SCRIPT)
    assert (small.words, large.words) == (("--batch-size=32",), ("--batch-size=64",))
    assert (small.label, small.size, small.varied, small.configuration) == ("--batch-size=32", 32.0, "--batch-size", "")


@pytest.mark.parametrize(
    ("choice", "value"),
    [
        pytest.param("bucket_cap_mb=5", 5, id="int"),
        pytest.param("bucket_cap_mb=0.5", 0.5, id="float"),
        pytest.param("bucket_cap_mb=None", None, id="none"),
        pytest.param("static_graph=True", True, id="bool"),
    ],
)
def test_an_argument_of_ddp_is_replaced(choice: str, value: object) -> None:
    (variant,) = vary(ONE, [choice], SCRIPT)
    assert variant.ddp == {choice.partition("=")[0]: value}
    assert variant.words == ()


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        pytest.param("bucket_cap_mb=1,abc", "bucket_cap_mb=abc is not valid: give a size in MiB, or None", id="text"),
        pytest.param("bucket_cap_mb=True", "give a size in MiB, or None", id="bool-as-number"),
        pytest.param("bucket_cap_mb_list=[1,x]", "give a list of sizes in MiB, in brackets", id="list"),
        pytest.param("static_graph=false", "give True or False", id="bool-in-lower-case"),
    ],
)
def test_a_value_that_ddp_would_refuse_is_a_mistake(choice: str, wanted: str) -> None:
    with pytest.raises(DdpprofError, match=re.escape(wanted)):
        vary(ONE, [choice], SCRIPT)


def test_capitals_are_an_environment_variable() -> None:
    (variant,) = vary(ONE, ["OMP_NUM_THREADS=2"], SCRIPT)
    assert (variant.variables, variant.words) == ({"OMP_NUM_THREADS": "2"}, ())


def test_any_other_word_is_an_argument() -> None:
    (variant,) = vary(ONE, ["model.width=32"], SCRIPT)
    assert variant.words == ("model.width=32",)


@pytest.mark.parametrize("name", ["--batch", "batch"])
def test_a_place_in_the_command_takes_the_value(name: str) -> None:
    (variant,) = vary(ONE, [f"{name}=8"], ("bash", "run.sh", "b={batch}"))
    assert (variant.places, variant.words) == ({"batch": "8"}, ())


def test_several_choices_are_combined_and_the_first_is_the_size() -> None:
    variants = vary(ONE, ["--batch=8,16", "bucket_cap_mb=1,25"], SCRIPT)
    assert [variant.label for variant in variants] == [
        "--batch=8 bucket_cap_mb=1",
        "--batch=8 bucket_cap_mb=25",
        "--batch=16 bucket_cap_mb=1",
        "--batch=16 bucket_cap_mb=25",
    ]
    assert [(variant.size, variant.configuration) for variant in variants[1:3]] == [
        (8.0, "bucket_cap_mb=25"),
        (16.0, "bucket_cap_mb=1"),
    ]


def test_commas_within_brackets_belong_to_one_value() -> None:
    variants = vary(ONE, ["bucket_cap_mb_list=[1, 25],[1,5,25]"], SCRIPT)
    assert [variant.ddp["bucket_cap_mb_list"] for variant in variants] == [[1, 25], [1, 5, 25]]


def test_words_that_only_the_script_can_know_are_told() -> None:
    choices = ["no_such=1,2", "--lr=1", "bucket_cap_mb=1", "OMP_NUM_THREADS=1", "place=3"]
    assert passed_on(choices, ["train.py", "--at={place}"]) == ["no_such"]


@pytest.mark.parametrize("values", ["small,large", "0,-1", "nan,inf"])
def test_a_value_that_is_no_number_above_0_has_no_size(values: str) -> None:
    assert [variant.size for variant in vary(ONE, [f"--model={values}"], SCRIPT)] == [None, None]


def test_settings_hold_for_all_and_stand_in_no_label() -> None:
    variant = with_settings(ONE, ["bucket_cap_mb=5", "--lr=1,2"], SCRIPT)
    assert (variant.ddp, variant.words, variant.label) == ({"bucket_cap_mb": 5}, ("--lr=1,2",), "")


def test_a_shared_total_is_divided() -> None:
    variant = shared_by(Variant(4), "--batch-size=256", SCRIPT)
    assert (variant.words, variant.label) == (("--batch-size=64",), "--batch-size=256 in total")


@pytest.mark.parametrize("setting", ["--batch-size=255", "--batch-size=a", "--batch-size=8,16"])
def test_what_cannot_be_shared_is_a_mistake(setting: str) -> None:
    with pytest.raises(DdpprofError, match="cannot be divided evenly among 4 processes"):
        shared_by(Variant(4), setting, SCRIPT)


@pytest.mark.parametrize("choice", ["", "--batch-size", "--batch-size=", "=3", "--=3", "--batch-size=1,,2"])
def test_what_is_no_choice_is_a_mistake(choice: str) -> None:
    with pytest.raises(DdpprofError, match="Write, for example, "):
        vary(ONE, [choice], SCRIPT)


def test_the_listed_arguments_are_ddps() -> None:
    given = inspect.signature(DistributedDataParallel.__init__).parameters
    assert [name for name in DDP_ARGUMENTS if name not in given] == []


def test_a_misspelt_argument_of_ddp_is_no_argument_of_the_script() -> None:
    with pytest.raises(DdpprofError, match=r"no argument bucket_cap\. Did you mean bucket_cap_mb"):
        vary(ONE, ["bucket_cap=1,25"], SCRIPT)


def test_the_compilation_of_ddp_is_varied_with_its_buckets() -> None:
    choices = ["compile_order=ddp_first,model_first", "optimize_ddp=no_optimization", "bucket_cap_mb=5"]
    first, second = vary(ONE, choices, SCRIPT)
    assert (first.compile_order, first.optimize_ddp) == ("ddp_first", "no_optimization")
    assert first.ddp == {"bucket_cap_mb": 5}
    assert second.compile_order == "model_first"
    assert (second.words, second.variables) == ((), {})


def test_sync_batch_norm_is_left_out() -> None:
    varied = vary(ONE, ["sync_batch_norm=True,False"], SCRIPT)
    assert [one.switches for one in varied] == [{"sync_batch_norm": True}, {"sync_batch_norm": False}]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        pytest.param("sync_batch_norm=off", "give True or False", id="batch-norm"),
        pytest.param("optimize_ddp=True", "give ddp_optimizer or python_reducer or no_optimization", id="mode"),
        pytest.param("compile_order=inside", "give ddp_first or model_first", id="order"),
        pytest.param("compile_orders=ddp_first", "Did you mean compile_order?", id="misspelt"),
    ],
)
def test_a_compilation_that_torch_does_not_know_is_a_mistake(choice: str, wanted: str) -> None:
    with pytest.raises(DdpprofError, match=re.escape(wanted)):
        vary(ONE, [choice], SCRIPT)
