"""Runs that are not on this machine: S3 as moto serves it, and a real sshd, all over loopback."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import Run
from remotes import CONVNET, TRACE, ObjectStore, SshServer, object_store, one_line, ssh_server

TINY = json.dumps(
    {
        "traceEvents": [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 10, "dur": 100},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 20, "dur": 50},
        ]
    }
).encode()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as made:
        made.put("bucket")
        made.put_folder("bucket/runs/convnet", CONVNET)
        yield made


@pytest.fixture
def s3(ddpprof: Run, store: ObjectStore, alone: dict[str, str]) -> Run:
    """The command line, for which `store` is S3."""
    return lambda *arguments, **env: ddpprof(*arguments, **{**alone, **store.environment, **env})


def test_report_of_s3_is_that_of_the_same_files_here(
    s3: Run, store: ObjectStore, of_copy: Callable[[str], str]
) -> None:
    here = of_copy("convnet")
    for jobs in ("1", "2"):
        done = s3("report", "s3://bucket/runs/convnet", "--format", "json", "--jobs", jobs, "--no-cache")
        assert done.stdout == here, done.stderr


@pytest.mark.long
def test_summaries_stand_in_for_files_that_have_not_changed(s3: Run, store: ObjectStore) -> None:
    store.put_folder("bucket/runs/changing", CONVNET)

    def traces_read() -> tuple[str, set[str]]:
        with store.requests() as seen:
            done = s3("report", "s3://bucket/runs/changing", "--format", "json")
        assert done.returncode == 0, done.stderr
        return done.stdout, {one for one in seen if one.startswith("GET") and "trace.json" in one}

    first, read = traces_read()
    assert read == {f"GET /bucket/runs/changing/rank-{rank}.trace.json.gz" for rank in (0, 1)}
    again, read = traces_read()
    assert (again, read) == (first, set())
    store.put("bucket/runs/changing/rank-0.trace.json.gz", (CONVNET / TRACE).read_bytes())
    changed, read = traces_read()
    assert read == {"GET /bucket/runs/changing/rank-0.trace.json.gz"}
    assert changed != first


@pytest.mark.long
def test_a_folder_is_listed_once_whatever_it_holds(s3: Run, store: ObjectStore) -> None:
    num_files = 40
    for rank in range(num_files):
        store.put(f"bucket/many/rank{rank}.json", TINY)
    with store.requests() as seen:
        done = s3("report", "s3://bucket/many", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"]["num_ranks_read"] == num_files
    reads = [one for one in seen if one.startswith("GET /bucket/many/rank")]
    assert len(set(reads)) == num_files
    # One asks whether it is a file, one whether a folder; the third one lists it.
    assert len(seen) - len(reads) == 3, seen


@pytest.mark.long
def test_a_large_object_is_read_in_few_requests(
    start: Run, store: ObjectStore, alone: dict[str, str], tmp_path: Path
) -> None:
    content = os.urandom(1 << 20) * 20
    store.put("bucket/large", content)
    script = tmp_path / "read.py"
    script.write_text(
        "import sys, zlib\n"
        "from ddpprof.files import location\n"
        "crc = 0\n"
        "with location('s3://bucket/large').open() as file:\n"
        "    while chunk := file.read(1_000_000):\n"
        "        crc = zlib.crc32(chunk, crc)\n"
        "print(crc)\n"
    )
    with store.requests() as seen:
        done = start(sys.executable, script, **alone, **store.environment)
    assert done.stdout.strip() == str(zlib.crc32(content)), done.stderr
    assert seen == ["HEAD /bucket/large", *["GET /bucket/large"] * 4]


@pytest.mark.long
def test_reports_are_written_to_s3(s3: Run, store: ObjectStore) -> None:
    run = "s3://bucket/runs/convnet"
    for name in ("report.html", "report.json", "report.md"):
        done = s3("report", run, "--out", f"s3://bucket/out/{name}")
        assert (done.returncode, done.stdout) == (0, f"Wrote s3://bucket/out/{name}.\n"), done.stderr
    assert b"</html>" in store.get("bucket/out/report.html")
    assert json.loads(store.get("bucket/out/report.json"))["job"]["name"] == "convnet"
    assert b"Findings" in store.get("bucket/out/report.md")
    done = s3("report", run, "--out", "s3://bucket/out/tables/")
    assert done.stdout.startswith("Wrote to s3://bucket/out/tables/: steps.parquet ("), done.stderr
    assert store.get("bucket/out/tables/ranks.parquet").startswith(b"PAR1")
    done = s3("timeline", run, "--out", "s3://bucket/out/run.perfetto.json.gz")
    assert done.returncode == 0, done.stderr
    assert store.get("bucket/out/run.perfetto.json.gz").startswith(b"\x1f\x8b")
    done = s3("compare", "s3://bucket/out/report.json", run, "--fail-on", "step>1%", "--on-unknown", "pass")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_what_is_wrong_with_s3_is_said_in_one_line(s3: Run, store: ObjectStore) -> None:
    nothing_there = "does not exist. Give a run directory, a folder of torch.profiler traces, or one trace."
    assert one_line(s3("report", "s3://bucket/none")) == f"ddpprof: s3://bucket/none {nothing_there}"
    assert one_line(s3("report", "s3://no-bucket/none")) == f"ddpprof: s3://no-bucket/none {nothing_there}"
    done = s3("report", "s3://bucket/runs/convnet", "--out", "s3://no-bucket/report.json")
    nowhere = "there is no such file, folder or bucket."
    assert one_line(done) == f"ddpprof: cannot write s3://no-bucket/report.json: {nowhere}"
    done = s3("report", "s3://bucket/runs/convnet", AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert one_line(done).startswith("ddpprof: s3://bucket/runs/convnet: the server cannot be reached (")
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
    said = one_line(s3("report", "s3://bucket/runs/convnet", **nobody))
    assert said.startswith("ddpprof: s3://bucket/runs/convnet: no credentials were found (")
    assert "AWS_PROFILE" in said
    done = s3("report", "s3://bucket/runs/convnet", "--format", "json", **nobody, FSSPEC_S3_ANON="true")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_s3_that_refuses_the_credentials_is_named(ddpprof: Run, alone: dict[str, str], tmp_path: Path) -> None:
    with object_store(tmp_path, INITIAL_NO_AUTH_ACTION_COUNT="0") as strict:
        said = one_line(ddpprof("report", "s3://bucket/run", **alone, **strict.environment))
    assert said.startswith("ddpprof: s3://bucket/run: permission denied (")


@pytest.mark.parametrize(
    ("scheme", "package"), [("s3", "s3fs"), ("sftp", "paramiko"), ("hf", "huggingface_hub"), ("gs", "gcsfs")]
)
def test_a_driver_that_is_missing_is_named(scheme: str, package: str, ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(f"raise ModuleNotFoundError('none', name={package!r})")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    for arguments in (["report", f"{scheme}://a/b"], ["report", str(CONVNET), "--out", f"{scheme}://a/b.html"]):
        said = one_line(ddpprof(*arguments, PYTHONPATH=path))
        assert said == f"ddpprof: {scheme}:// needs {package}. Install it with: pip install {package}"


def test_an_unknown_scheme_is_refused(ddpprof: Run) -> None:
    assert "fsspec does not support s4://" in one_line(ddpprof("report", "s4://bucket/run"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("trace", "--out", "s3://bucket/run", "train.py"),
        ("sweep", "--out", "s3://bucket/run", "--vary", "bucket_cap_mb=1", "train.py"),
        ("tensorboard", "--logdir", "s3://bucket/run", "runs"),
        ("demo", "--out", "s3://bucket/run"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_is_written_bit_by_bit_stays_here(arguments: tuple[str, ...], ddpprof: Run) -> None:
    assert one_line(ddpprof(*arguments)).startswith("ddpprof: s3://bucket/run is not on this machine. ")


def test_file_urls_are_paths(
    ddpprof: Run, alone: dict[str, str], of_copy: Callable[[str], str], tmp_path: Path
) -> None:
    here = of_copy("convnet")
    out = tmp_path / "out.json"
    done = ddpprof("report", f"file://{tmp_path}/convnet", "--out", f"file://{out}", **alone)
    assert done.returncode == 0, done.stderr
    assert out.read_text() == here


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[SshServer]:
    with ssh_server(tmp_path) as server:
        yield server


@pytest.mark.long
def test_report_over_sftp(
    ddpprof: Run, ssh: SshServer, alone: dict[str, str], of_copy: Callable[[str], str], tmp_path: Path
) -> None:
    here = of_copy("convnet")
    run = f"{ssh.address}{tmp_path}/convnet"
    with_key = {**alone, "FSSPEC_SFTP_KEY_FILENAME": str(ssh.key)}
    for jobs in ("1", "2"):
        done = ddpprof("report", run, "--format", "json", "--jobs", jobs, "--no-cache", **with_key)
        assert done.stdout == here, done.stderr
    done = ddpprof("report", run, "--out", f"{ssh.address}{tmp_path}/page.html", **with_key)
    assert done.returncode == 0, done.stderr
    assert "</html>" in (tmp_path / "page.html").read_text()
    done = ddpprof("timeline", run, "--out", f"{ssh.address}{tmp_path}/run.perfetto.json.gz", **with_key)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run.perfetto.json.gz").read_bytes().startswith(b"\x1f\x8b")


@pytest.mark.long
def test_what_is_wrong_over_sftp_is_said_in_one_line(
    ddpprof: Run, ssh: SshServer, alone: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(CONVNET, tmp_path / "convnet")
    run = f"{ssh.address}{tmp_path}/convnet"
    with_key = {**alone, "FSSPEC_SFTP_KEY_FILENAME": str(ssh.key)}
    said = one_line(ddpprof("report", run, **alone))
    assert said.startswith(f"ddpprof: {run}: the server rejected the credentials (")
    assert "ssh agent" in said
    user, _, host = ssh.address.removeprefix("sftp://").partition("@")
    said = one_line(ddpprof("report", f"sftp://{user}:geheim@{host}{tmp_path}/convnet", **alone))
    assert said.startswith(f"ddpprof: {run}: the server rejected the credentials (")
    assert "geheim" not in said
    assert "does not exist" in one_line(ddpprof("report", f"{run}-none", **with_key))
    said = one_line(ddpprof("report", run, "--out", f"{run}-none/page.html", **with_key))
    assert said == f"ddpprof: cannot write {run}-none/page.html: there is no such file, folder or bucket."
    said = one_line(ddpprof("report", f"sftp://{user}@127.0.0.1:9/run", **alone))
    assert said.startswith(f"ddpprof: sftp://{user}@127.0.0.1:9/run: the server cannot be reached (")
