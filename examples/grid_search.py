"""Find the best parameters of a classifier of handwritten digits, with scikit-learn, on a network
of three workers that this program starts.

pip install '.[joblib]' scikit-learn
python -m examples.grid_search
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # where `examples` is

import joblib
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import formation_p2p.joblib  # noqa: F401 - makes the backend known to joblib
from formation_demo.local_network import LocalNetwork
from formation_p2p import Node

PARAMETERS = {"C": [0.1, 1, 10], "gamma": [0.001, 0.01]}


def search(node: Node) -> GridSearchCV:
    """The calls run on workers, which need scikit-learn too; the last fit, of the best, here."""
    pixels, digits = load_digits(return_X_y=True)
    found = GridSearchCV(SVC(), PARAMETERS, cv=3)
    with joblib.parallel_config("formation", node=node, needs="cpu=1,memory=256MiB"):
        return found.fit(pixels, digits)


async def main() -> None:
    async with (
        LocalNetwork(workers=3) as network,
        Node.join(network.invite, home=network.home, listen=()) as node,
    ):
        await network.seen_by(node)
        # In a thread: it waits, and the loop of this program does not.
        found = await asyncio.to_thread(search, node)
        for each in await node.trust():
            print(f"worker {each.peer_id[-8:]} did {each.successes} batches")
    fits = len(found.cv_results_["params"]) * found.n_splits_
    print(f"{fits} fits: {found.best_params_} are right in {found.best_score_:.1%}")


if __name__ == "__main__":
    asyncio.run(main())
