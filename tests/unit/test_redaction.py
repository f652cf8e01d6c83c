"""Nothing confidential is kept of command lines and URLs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpprof.record.run_directory import open_run
from ddpprof.record.settings import Settings
from ddpprof.redaction import without_secrets, words_without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("s3://me:p@ss@host/a", "s3://me@host/a", id="at-in-password"),
        pytest.param("sftp://me:se/cr/et@host/a", "sftp://me@host/a", id="slash-in-password"),
        pytest.param("SFTP://me:secret@host/a", "SFTP://me@host/a", id="upper-case"),
        pytest.param("abfs://box/a?sig=secret", "abfs://box/a", id="query-of-a-store"),
        pytest.param("https://host/a#access_token=secret", "https://host/a", id="fragment"),
        pytest.param("sftp://A1B2C3D4E5F6A7B8C9@host/a", "sftp://***@host/a", id="token-as-user"),
        pytest.param("https://host:8080/a@b", "https://host:8080/a@b", id="port-is-no-password"),
        pytest.param("login with hf_abcdefghijklmnop failed", "login with *** failed", id="known-token"),
        pytest.param("Authorization: Bearer abc.def-123", "Authorization: Bearer ***", id="header"),
        pytest.param("the bearer of 2 tokens", "the bearer of 2 tokens", id="no-header"),
        pytest.param("s3://bucket/runs/a.json", "s3://bucket/runs/a.json", id="nothing-secret"),
    ],
)
def test_urls_and_tokens_in_any_text(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        pytest.param("--api-key=S --lr 0.1", "--api-key=*** --lr 0.1", id="joined"),
        pytest.param("--password S --lr 0.1", "--password *** --lr 0.1", id="apart"),
        pytest.param("env WANDB_API_KEY=S train.py", "env WANDB_API_KEY=*** train.py", id="variable"),
        pytest.param("wandb.apikey=S", "wandb.apikey=***", id="hydra"),
        pytest.param("--hf_token S", "--hf_token ***", id="underscore"),
        pytest.param("--secretkey S --authtoken=S", "--secretkey *** --authtoken=***", id="in-one-word"),
        pytest.param("--use-token --lr 1", "--use-token --lr 1", id="flag"),
        pytest.param(
            "--max-tokens 512 --tokenizer x --monkey=1", "--max-tokens 512 --tokenizer x --monkey=1", id="none"
        ),
    ],
)
def test_values_that_are_named_as_secrets(words: str, shown: str) -> None:
    assert words_without_secrets(words.split()) == shown.split()


def test_the_run_file_keeps_no_secret(tmp_path: Path) -> None:
    words = ("train.py", "--api-key", "S3CRET", "--data=s3://me:S3CRET@host/a")
    text = (open_run(Settings(str(tmp_path / "run"), words, words), "id", 1) / "run.json").read_text()
    assert json.loads(text)["command"] == ["train.py", "--api-key", "***", "--data=s3://me@host/a"]
    assert "S3CRET" not in text
