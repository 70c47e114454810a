"""Two machines without a scheduler: torchrun on both, in networks of their own, with a cable."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

CHAPTER = Path(__file__).resolve().parents[2] / "1_multi_gpu"
MACHINES = [f"alpha{os.getpid()}", f"beta{os.getpid()}"]
CABLE = """
ip netns add $0 && ip netns add $1
ip link add card netns $0 type veth peer name card netns $1
for machine in "$0 192.0.2.1" "$1 192.0.2.2"; do
  set -- $machine
  ip -n $1 address add $2/24 dev card
  ip -n $1 link set card up
  ip -n $1 link set lo up
done
"""


def losses(folder: Path) -> np.ndarray:
    """What each step of a run gives, without times."""
    table = pd.read_csv(folder / "run_1" / "metrics.csv")
    return table.drop(columns="samples_per_second").to_numpy()


@pytest.fixture
def machines():
    made = subprocess.run(["bash", "-ec", CABLE, *MACHINES], capture_output=True)
    if made.returncode:
        pytest.skip("needs root, for networks")
    yield MACHINES
    for name in MACHINES:
        subprocess.run(["ip", "netns", "delete", name])


@pytest.mark.slow
def test_two_machines_give_the_curve_of_one(machines, tmp_path):
    """Broken by: no GLOO_SOCKET_IFNAME; num_nodes 1."""
    script = ["lightning_train.py", "-c", "tests/ocean.yaml", "--trainer.max_epochs=1"]
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    torchrun += ["--master-addr=192.0.2.1", "--master-port=29500"]
    two = [f"--trainer.output_dir={tmp_path}", "--trainer.num_nodes=2"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "card"}
    processes = []
    for rank, name in enumerate(machines):
        command = ["ip", "netns", "exec", name, sys.executable, *torchrun]
        command += [f"--node-rank={rank}", *script, *two]
        processes.append(subprocess.Popen(command, cwd=CHAPTER, env=environment))
    assert [process.wait() for process in processes] == [0, 0]

    one = tmp_path / "one"
    command = [sys.executable, *script, f"--trainer.output_dir={one}"]
    subprocess.run(command, cwd=CHAPTER, check=True)
    np.testing.assert_allclose(losses(tmp_path), losses(one), rtol=1e-5)
