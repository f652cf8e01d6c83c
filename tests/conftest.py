"""Options and fixtures of all tests."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import accelerator
import pytest
from hypothesis import settings

pytest_plugins = ["browser"]

settings.register_profile("unhurried", deadline=None)  # the machine may be busy with something else
settings.load_profile("unhurried")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests in one process that share a fixture of their module."""
    for item in items:
        fixtures: dict[str, Sequence[pytest.FixtureDef[object]]] = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 (not public)
        if any(one[-1].scope == "module" for one in fixtures.values()):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Summaries of traces that are no run go there, and not to whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache-home")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="refresh tests/golden/ and the report's schema")
    parser.addoption(
        "--as-on-accelerator", action="store_true", help="all training that tests start takes itself for one on a GPU"
    )
    parser.addoption("--on-cpu", action="store_true", help="tests/gpu trains with gloo on the CPU")


def pytest_configure(config: pytest.Config) -> None:
    # Some machines set it. Then `print` writes a line in pieces, and those of two ranks mix.
    os.environ.pop("PYTHONUNBUFFERED", None)
    if config.getoption("--as-on-accelerator"):
        os.environ.update(accelerator.environment())


@pytest.fixture
def expect_golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compares text with a file, or refreshes the file under ``--update-golden``."""

    def expect(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; pytest --update-golden refreshes it"

    return expect
