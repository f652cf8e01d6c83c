"""Nothing confidential is kept of command lines and URLs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ddpprof.record.run_directory import open_run
from ddpprof.record.settings import Settings
from ddpprof.redaction import is_secret, without_secrets, words_without_secrets


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
        pytest.param("s3://me:p?a#b@host/a?q", "s3://me@host/a", id="query-in-password"),
        pytest.param("postgres://me:12345@host/db", "postgres://me@host/db", id="digits-as-password"),
        pytest.param("redis://:998877@cache:6379/0", "redis://@cache:6379/0", id="password-without-user"),
        pytest.param("size of key_proj.weight: copying a", "size of key_proj.weight: copying a", id="a-parameter"),
        pytest.param("loss of key=5", "loss of key=5", id="number-of-a-key"),
        pytest.param("Authorization: Basic S", "Authorization: Basic ***", id="basic"),
        pytest.param("sent Basic bWU6cHc= first", "sent Basic *** first", id="basic-alone"),
        pytest.param("the basic training of it", "the basic training of it", id="no-basic"),
        pytest.param("{'Authorization': 'Token S'}", "{'Authorization': 'Token ***'}", id="header-in-a-dict"),
        pytest.param("X-Api-Key: S", "X-Api-Key: ***", id="header-with-a-key"),
        pytest.param("password=S HF_TOKEN=S", "password=*** HF_TOKEN=***", id="assignments"),
        pytest.param("cannot log in with password: S", "cannot log in with password: ***", id="after-a-colon"),
        pytest.param("a=b=token=S", "a=b=token=***", id="in-an-assignment"),
        pytest.param('{"api_key": "S T", "lr": 1}', '{"api_key": "***", "lr": 1}', id="json"),
        pytest.param("db_password = 'S T'", "db_password = '***'", id="python"),
        pytest.param("['a.py', '--password', 'S', 'x']", "['a.py', '--password', '***', 'x']", id="command"),
        pytest.param("KeyError: 'layer.weight'", "KeyError: 'layer.weight'", id="key-error"),
        pytest.param("missing key: layer.weight", "missing key: layer.weight", id="missing-key"),
        pytest.param('Missing key(s): "a.weight"', 'Missing key(s): "a.weight"', id="missing-keys"),
        pytest.param("store key 'default_pg/0//0'", "store key 'default_pg/0//0'", id="key-of-a-store"),
        pytest.param("max_tokens=512 tokenizer='x'", "max_tokens=512 tokenizer='x'", id="tokens-of-a-model"),
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
            "--hftoken S --dbpassword=S --wandbKey S", "--hftoken *** --dbpassword=*** --wandbKey ***", id="within"
        ),
        pytest.param("PGPASSWORD=S TOKEN_X=S API_KEY_1=S", "PGPASSWORD=*** TOKEN_X=*** API_KEY_1=***", id="variables"),
        pytest.param("+trainer.hfToken=S --auth S", "+trainer.hfToken=*** --auth ***", id="camel-case"),
        pytest.param("--password -S --lr 1", "--password *** --lr 1", id="value-with-a-dash"),
        pytest.param("--num-keypoints 17 --author me", "--num-keypoints 17 --author me", id="ordinary-words"),
        pytest.param(
            "--max-tokens 512 --tokenizer x --monkey=1", "--max-tokens 512 --tokenizer x --monkey=1", id="none"
        ),
    ],
)
def test_values_that_are_named_as_secrets(words: str, shown: str) -> None:
    assert words_without_secrets(words.split()) == shown.split()


@pytest.mark.parametrize("name", ["PGPASSWORD", "TOKEN_X", "API_KEY_1", "wandbKey", "DB_PWD", "MY_CREDENTIALS", "AUTH"])
def test_variables_that_are_named_as_secrets(name: str) -> None:
    assert is_secret(name, "S")
    assert not is_secret("TOKENIZERS_PARALLELISM", "false")


@pytest.mark.parametrize(
    "part",
    ["a", "a=", "x://a:", "x://@", "key ", "'", "k='", "authorization ", "bearer ", "basic ", " ", "-k ", "a@", "?"],
)
def test_a_long_variable_takes_no_minutes(part: str) -> None:
    """It takes some 0.5 s; what grows with the square of the length takes hours."""
    began = time.process_time()
    without_secrets(part * (300_000 // len(part)))
    assert time.process_time() - began < 60


def test_the_run_file_keeps_no_secret(tmp_path: Path) -> None:
    words = ("train.py", "--api-key", "S3CRET", "--data=s3://me:S3CRET@host/a")
    text = (open_run(Settings(str(tmp_path / "run"), words, words), "id", 1) / "run.json").read_text()
    assert json.loads(text)["command"] == ["train.py", "--api-key", "***", "--data=s3://me@host/a"]
    assert "S3CRET" not in text
