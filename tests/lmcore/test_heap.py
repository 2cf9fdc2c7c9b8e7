"""What a step frees is there for the next step: no page is asked of the system again."""

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import torch
from lmcore.heap import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.set_num_threads(1)
x = torch.randn(1000, 1000)
for step in range(6):
    before = faults()
    blocks = [x + i for i in range(12)]  # 46 MiB
    del blocks
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone")
def test_a_step_takes_what_the_last_one_freed() -> None:
    faults = {how: _faults_of_a_step(how) for how in ("keep", "default")}
    pages = 12 * 4_000_000 // 4096
    assert faults["keep"] < pages / 100
    assert faults["default"] > pages / 3, "nothing to gain here: is the default of the C library another now?"


def _faults_of_a_step(how: str) -> int:
    return int(subprocess.check_output([sys.executable, "-c", STEPS, how]))
