"""All benchmarks, one after the other: `python -m benchmarks`."""

from benchmarks import curves, many, record, search, step, telemetry

if __name__ == "__main__":
    step.main(["--clock", "cpu", "--compare"])
    telemetry.main()
    many.main()
    record.main()
    curves.main()
    search.main()
