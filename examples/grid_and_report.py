"""Several methods by several seeds, and one page about them.

    python examples/grid_and_report.py     # one to two minutes; a second call reads what is finished

The command `mlcil grid` does the same with runs side by side, on one machine or a Ray cluster:

    mlcil grid --methods ft,lwf,er:5 --protocols B6-C2 --data digits:train=1000,test=400,size=24 --seeds 0,1 --jobs 2 \\
        --set image_size=24 --set epochs=6 --set batch_size=32 --set base_lr=3e-3 --set lr=2e-3 --set augment=none
"""

import mlcil

OUT = "runs/example-grid"
METHODS = {"ft": {}, "lwf": {}, "er": {"buffer": "5"}}  # er keeps five images per class
SEEDS = (0, 1)
SETTINGS = {
    "data": "digits:train=1000,test=400,size=24",  # canvases with one to four handwritten digits
    "protocol": "B6-C2",  # six digits in the first session, two in each further one
    "image_size": 24,
    "epochs": 6,
    "batch_size": 32,
    "base_lr": 3e-3,  # a small network that learns from scratch; the defaults are for pretrained ones
    "lr": 2e-3,
    "augment": "none",
}


def main() -> None:
    """Run the grid, write its report, and compare two of the methods."""
    for name, options in METHODS.items():
        for seed in SEEDS:
            # A run is a folder: a finished one is read, an interrupted one continues where it stopped.
            result = mlcil.run(method=name, seed=seed, out=f"{OUT}/{name}/seed-{seed}", **SETTINGS, **options)
            print(f"{name}, seed {seed}: mAP {result.last_map:.1f}, average over sessions {result.average_map:.1f}")

    # Runs that differ only in the seed become one row with mean and deviation.
    page = mlcil.report([OUT], out=f"{OUT}/report")
    print(f"tables, curves and every class: {page}")

    # A paired bootstrap over the test images and the seeds says whether a difference is more than noise.
    found = mlcil.compare(f"{OUT}/ft", f"{OUT}/lwf").difference
    low, high = found.interval
    print(f"lwf minus ft: {found.difference:+.1f} points of mAP, 95 % interval {low:.1f} to {high:.1f}")


if __name__ == "__main__":
    main()
