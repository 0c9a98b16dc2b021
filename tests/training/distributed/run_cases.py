"""What two or four processes do together: run as a module by test_ranks.py, once for all cases.

    python -m tests.training.distributed.run_cases RANK SIZE FOLDER

Every case is a function of (rank, size). Called with (0, 1) and without a process group it is the
same training in a single process on the same global batches.
"""

import datetime
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from tests.training.distributed.certified_cases import certified, padded
from tests.training.distributed.ddp_cases import (
    SPOILED,
    collectives,
    groups,
    low_precision,
    nan_loss,
    nan_value,
    not_in_the_group,
    raised,
    random_constraint,
    slack,
    spoiled,
)
from tests.training.distributed.indexed_cases import INDEXED, indexed_nan, indexed_resume
from tests.training.distributed.ranks_training import EQUAL, foreach, fused, lbfgs, momentum, train
from tests.training.distributed.sharded_cases import (
    ZOO,
    captured,
    distributed_checkpoint,
    fsdp1,
    low_precision_shards,
    nan_in_one_shard,
    sharded,
    zoo,
)
from torch_powalm import ConstraintWarning


def cases(folder):
    found = {f"equal: {name}": (train, settings) for name, settings in EQUAL.items()}
    for how in SPOILED:
        found[f"raised: {how}"] = (raised, dict(how=how))
        found[f"skipped: {how}"] = (spoiled, dict(how=how, on_nonfinite="skip"))
    found |= {
        "wrong: a norm for every rank nu=0.7": (train, dict(single_group=True)),
        "wrong: a norm for every rank nu=1.0": (train, dict(single_group=True, nu=1.0)),
        "wrong: a mean of ratios": (train, dict(blocks=("ratio",))),
        "line search": (train, dict(closure=True, base=lbfgs, nu=1.0, epochs=1)),
        "collectives": (collectives, {}),
        "groups": (groups, {}),
        "not in the group": (not_in_the_group, {}),
        "random: at once": (random_constraint, dict(from_step=0)),
        "random: later": (random_constraint, dict(from_step=2)),
        "random: one seed": (random_constraint, dict(from_step=0, one_seed=True)),
        "slack: inside": (slack, dict(inside=True)),
        "slack: outside": (slack, dict(inside=False)),
        "low precision": (low_precision, {}),
        "certified: split": (certified, dict(split=True)),
        "certified: whole": (certified, dict(split=False)),
        "certified: padded": (padded, {}),
        **{f"zoo: {which}": (zoo, dict(which=which)) for which in ZOO},
        "zoo: rows, replicas": (zoo, dict(which="rows", replicas=True)),
        "zoo: joined, replicas": (zoo, dict(which="joined", replicas=True)),
        "zoo: rows, clipping": (zoo, dict(which="rows", clip=True)),
        "zoo: sum, momentum": (zoo, dict(which="sum", base=momentum)),
        "zoo: columns, fused": (zoo, dict(which="columns", base=fused)),
        "zoo: orthonormal, foreach": (zoo, dict(which="orthonormal", base=foreach)),
        **INDEXED,
        "resumed samples": (indexed_resume, {}),
        "skipped samples: every_step": (indexed_nan, dict(check_finite="every_step")),
        "skipped samples: at_update": (indexed_nan, dict(check_finite="at_update")),
        "captured": (captured, {}),
        "low-precision shards": (low_precision_shards, {}),
        "sharded: all": (sharded, {}),
        "sharded: nu=1.0": (sharded, dict(nu=1.0)),
        "automatic shards": (sharded, dict(beta_1=None, omega=1.0, total_steps=10)),
        "sharded: uneven": (sharded, dict(uneven=True)),
        "sharded: accumulation": (sharded, dict(accumulate=True)),
        "sharded: clipping": (sharded, dict(clip=True)),
        "sharded: scaler": (sharded, dict(scaler=True)),
        "sharded: scaler and clipping": (sharded, dict(scaler=True, clip=True)),
        "sharded: scaler and accumulation": (sharded, dict(scaler=True, accumulate=True)),
        "sharded: block norms": (sharded, dict(coupling="block")),
        "sharded: prox": (sharded, dict(with_prox=True, base=momentum)),
        "sharded: skipped value": (sharded, dict(spoil=nan_value, on_nonfinite="skip")),
        "sharded: skipped loss": (sharded, dict(spoil=nan_loss, on_nonfinite="skip")),
        "sharded: skipped shard": (nan_in_one_shard, {}),
        "fsdp1: flat": (fsdp1, dict(use_orig_params=False)),
        "fsdp1: original": (fsdp1, dict(use_orig_params=True)),
        "distributed checkpoint": (distributed_checkpoint, dict(folder=str(folder / "dcp"))),
    }
    return found


FOUR = (  # what four ranks do
    "sharded: all",
    "sharded: skipped value",
    "zoo: rows",
    "indexed: shards",
    "distributed checkpoint",
)


def main():
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConstraintWarning)  # of runs that are this short
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60)
    )
    results, found = {}, cases(folder)
    for name in FOUR if size == 4 else found:
        run, settings = found[name]
        try:
            results[name] = run(rank, size, **settings)
        except Exception:
            results[name] = f"failed: {traceback.format_exc()}"
    torch.save(results, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
