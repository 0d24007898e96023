import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments import clean_environment
from tests.integration.conftest import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_tour_goes_from_simulated_units_to_answers_by_http():
    done = subprocess.run(
        [ROOT / "tools" / "tour", Path(sys.executable).parent, str(free_port())],
        env=clean_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "kept" in done.stdout
    assert len(re.findall(r"^.*(healthy|degrading|critical)", done.stdout, flags=re.MULTILINE)) >= 5
