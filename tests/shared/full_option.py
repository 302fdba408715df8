"""The option `--full`, for conftest.py: without it tests that are marked so do not run."""


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="run the long tests, too")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--full"):
        return
    long = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
