"""How long the fuzzers run."""


def pytest_addoption(parser):
    parser.addoption("--examples", type=int, default=200, help="inputs for each fuzzed door")
