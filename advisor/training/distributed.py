"""Several processes do one training: under `srun`, ranks come from Slurm's environment and meet over gloo.

With one process nothing of torch.distributed is touched. What is to be played is dealt out (`deal`), sums of gradients
are taken over all ranks, so that as many ranks as there are end with what one would have ended with, up to rounding.
A rank that is gone ends all others within `PATIENCE_S`, with a sentence; the next start resumes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import numpy as np
import torch
from torch import nn
from torch._C._distributed_c10d import PrefixStore, TCPStore

from advisor.training.lookout import Lookout, patience_s
from advisor.training.ranks import RankLost, meeting_place, meeting_port, slurm_rank

# How long ranks wait for each other to come: srun starts them at once, but a file system may be slow.
MEETING_S = 300.0
_lookout: Lookout | None = None


def world_rank() -> tuple[int, int]:
    """(This process's rank, how many there are); alone until it has joined the others."""
    if _lookout is None:
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def join() -> None:
    """Meets the other ranks at MASTER_ADDR:MASTER_PORT, over gloo; alone, does nothing. Raises `RankLost`."""
    global _lookout
    rank, count = slurm_rank()
    if count == 1 or _lookout is not None:
        return
    place, port, wait = meeting_place(), meeting_port(), timedelta(seconds=MEETING_S)
    try:
        store = TCPStore(place, port, count, rank == 0, wait)
        torch.distributed.init_process_group("gloo", store=PrefixStore("gloo", store), rank=rank, world_size=count)
        # A connection of its own: one that waits for an answer would keep the other from asking.
        own = TCPStore(place, port, None, False, wait, wait_for_workers=False)
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise RankLost(
            f"rank {rank} of {count} did not meet the others at {place}:{port} within {MEETING_S:.0f} s ({why}); "
            "set MASTER_ADDR to a name that every node knows, or MASTER_PORT to one that is free"
        ) from error
    _lookout = Lookout(own, rank, count, patience_s())
    _lookout.start()


def leave() -> None:
    """Parts from the others when all have come so far; alone, does nothing. Raises `RankLost`."""
    global _lookout
    if _lookout is None:
        return
    _lookout.stop()
    with _together():
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    _lookout = None


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Gloo's own words for a rank that is gone are those of a network library."""
    try:
        yield
    except RuntimeError as error:
        rank, count = world_rank()
        raise RankLost(
            f"another of the {count} ranks is gone, and rank {rank} cannot go on without it "
            f"({str(error).partition(chr(10))[0][:200]}); start again with --resume"
        ) from error


def add_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """The sum over all ranks in place of each rank's own gradient, in one exchange."""
    if world_rank()[1] == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    whole = torch.cat([gradient.reshape(-1) for gradient in gradients])
    with _together():
        torch.distributed.all_reduce(whole)
    first = 0
    for gradient in gradients:
        gradient.copy_(whole[first : first + gradient.numel()].reshape(gradient.shape))
        first += gradient.numel()


def sums(numbers: Sequence[float]) -> list[float]:
    """Each number summed over all ranks."""
    return [float(column.sum()) for column in np.array(gathered(numbers)).T]


def gathered(numbers: Sequence[float]) -> list[list[float]]:
    """What every rank has to tell, by rank; all tell as many numbers."""
    _, count = world_rank()
    mine = torch.tensor(list(numbers), dtype=torch.float64)
    if count == 1:
        return [mine.tolist()]
    told = [torch.zeros_like(mine) for _ in range(count)]
    with _together():
        torch.distributed.all_gather(told, mine)
    return [numbers.tolist() for numbers in told]


def dealt_results(mine: Sequence[float], count: int) -> list[float]:
    """Results of `count` pieces of work of which this rank did every `world`th; in the order of the pieces."""
    _, world = world_rank()
    most = -(-count // world)
    rows = gathered([*mine, *[0.0] * (most - len(mine))])
    return [rows[piece % world][piece // world] for piece in range(count)]


def tell(content: bytes) -> None:
    """From the first rank to all others, who `hear` it."""
    if world_rank()[1] > 1:
        with _together():
            torch.distributed.broadcast(torch.tensor([len(content)]), 0)
            torch.distributed.broadcast(_bytes(content), 0)


def _bytes(content: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def hear() -> bytes:
    """What the first rank tells next."""
    length = torch.zeros(1, dtype=torch.int64)
    with _together():
        torch.distributed.broadcast(length, 0)
        content = torch.zeros(int(length), dtype=torch.uint8)
        torch.distributed.broadcast(content, 0)
    return content.numpy().tobytes()


def collect(content: bytes) -> list[bytes]:
    """At the first rank what each has to tell, by rank; elsewhere nothing."""
    rank, count = world_rank()
    if count == 1:
        return [content]
    lengths = [int(row[0]) for row in gathered([float(len(content))])]
    if rank:
        with _together():
            torch.distributed.send(_bytes(content), 0)
        return []
    told = [content]
    for other in range(1, count):
        part = torch.zeros(lengths[other], dtype=torch.uint8)
        with _together():
            torch.distributed.recv(part, other)
        told.append(part.numpy().tobytes())
    return told


def deal(piles: Sequence[int]) -> tuple[list[tuple[int, slice]], bool]:
    """This rank's part of piles of so many pieces each: (pile, its pieces); and whether it has any.

    Parts are of one size and follow each other, so that a rank has whole piles but for its first and last. A rank that
    goes without, because there are more ranks than pieces, is given one that somebody else has, to keep in step.
    """
    rank, count = world_rank()
    total = sum(piles)
    first, last = total * rank // count, total * (rank + 1) // count
    if first == last:
        return [(next(k for k, size in enumerate(piles) if size), slice(0, 1))], False
    found, before = [], 0
    for number, size in enumerate(piles):
        low, high = max(first - before, 0), min(last - before, size)
        if low < high:
            found.append((number, slice(low, high)))
        before += size
    return found, True
