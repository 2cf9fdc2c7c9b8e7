"""How long a scaling-law fit takes: `python -m benchmarks.fits`. 300 rows of a known law with noise."""

import time

import numpy as np

from analysis.fit import Spec, fit
from analysis.infer import bootstrap

ROWS, RESAMPLES = 300, 1000
FIT_S, BOOTSTRAP_S = 1.0, 10.0


def main() -> None:
    generator = np.random.default_rng(0)
    n, d = 10 ** generator.uniform(7, 10, ROWS), 10 ** generator.uniform(9, 12, ROWS)
    loss = (1.8 + 420 / n**0.34 + 1400 / d**0.37) * np.exp(generator.normal(0, 0.01, ROWS))
    began = time.perf_counter()
    found = fit(Spec(), {"n": np.log(n), "d": np.log(d)}, loss)
    fitted = time.perf_counter()
    done = bootstrap(found, range(ROWS), RESAMPLES).done
    ended = time.perf_counter()
    print(f"fit of L(N, D) to {ROWS} runs: {fitted - began:.2f} s (target under {FIT_S:g} s)")
    print(f"bootstrap by run, {done} resamples: {ended - fitted:.1f} s (target under {BOOTSTRAP_S:g} s)")


if __name__ == "__main__":
    main()
