"""Checks that the counter is whole, and not less than the last acknowledged number."""
import os, sys

said = open(os.environ["UNTORN_ACKED"]).read().split()
try:
    lines = open(sys.argv[1] + "/counter").read().split()
except FileNotFoundError:
    sys.exit(f"the counter is missing, and {said[-1]} was acknowledged" if said else 0)
if len(lines) != 1000 or len(set(lines)) != 1:
    sys.exit(f"the counter is torn: {len(lines)} lines, with {sorted(set(lines))[:3]}")
if said and int(lines[0]) < int(said[-1]):
    sys.exit(f"the counter is {lines[0]}, and {said[-1]} was acknowledged")
