"""The communicator between ranks: sums in the order of ranks, rows from rank to rank, calls of rank 0."""

from __future__ import annotations

from tests.ranks.launcher import mpirun

# The sum of 1, 1e8 and -1e8 in float32 is 0 in the order of the ranks, and 1 in another order.
EACH_RANK = """
import numpy as np
from mpi4py import MPI
from gcnbatch.ranks.communicator import HostCommunicator

communicator = HostCommunicator(MPI.COMM_WORLD)
value = np.float32([1, 1e8, -1e8][communicator.rank])
for count in (1, 20_000, 100_001):  # gathered, and in shares
    array = np.full(count, value)
    communicator.all_reduce(array)
    assert (array == 0).all(), array
found = communicator.all_gather(np.array([[communicator.rank, 7]]))
assert found.tolist() == [[[0, 7]], [[1, 7]], [[2, 7]]]
sent = [np.full((to * 2, 3), 10 * communicator.rank + to, np.float32) for to in range(3)]
received = communicator.exchange(sent, [2 * communicator.rank] * 3)
assert [part.shape for part in received] == [(2 * communicator.rank, 3)] * 3
assert all((part == 10 * source + communicator.rank).all() for source, part in enumerate(received))
for call in (("step", 3), ("load", np.arange(5_000))):
    if communicator.rank == 0:
        communicator.send_call(call)
    else:
        name, value = communicator.receive_call()
        assert name == call[0] and np.array_equal(value, call[1])
assert communicator.all_gather(np.ones(1)).all()
if communicator.rank == 0:
    print("right")
"""


def test_sums_are_in_the_order_of_ranks_and_rows_arrive_where_they_were_sent() -> None:
    assert mpirun(3, code=EACH_RANK)[0] == "right\n"
