"""Count the primes below two million, on whatever workers the network has.

python examples/scheduler.py       # as printed by worker.py
"""

from formation_p2p import SyncNode

LIMIT = 2_000_000
STEP = 100_000


def primes_from(start: int) -> int:
    """How many primes there are from `start` to `start + STEP`. Runs on a worker."""
    stop = start + STEP
    is_prime = bytearray([1]) * STEP
    for factor in range(2, int(stop**0.5) + 1):
        first = max(factor * factor, -(-start // factor) * factor)
        is_prime[first - start :: factor] = bytes(len(range(first, stop, factor)))
    return sum(is_prime) - max(0, 2 - start)  # 0 and 1 are none


def main() -> None:
    # Nobody needs to reach this node: `listen` is empty.
    with SyncNode.join(listen=()) as node:
        for worker in node.workers():
            print(f"worker {worker.peer_id} at {', '.join(worker.addresses)}")
        counts = node.map(primes_from, range(0, LIMIT, STEP), needs="cpu=1,memory=128MiB")
    print(f"{len(counts)} tasks found {sum(counts):,} primes below {LIMIT:,}")


if __name__ == "__main__":
    main()
