"""From the record to an answer: name -> plan -> tables, curves, checks -> pictures -> report. Reads, never writes."""
