"""Shared by the examples: the commands `SCRIPT setup|run|check DIR ...`, and the oracle for results."""
import os, sys

KEYS = 20


def rounds():
    """The numbers of the transactions. A test that kills the program lets it go on where it was."""
    first = int(os.environ.get("UNTORN_FIRST", 1))
    return range(first, first + int(os.environ.get("UNTORN_ROUNDS", 60)))


def acknowledge(n):
    print(n, flush=True)


def oracle(numbers):
    """Checks that one transaction wrote all numbers, and not an older one than the last acknowledged."""
    acknowledged = open(os.environ["UNTORN_ACKED"]).read().split()
    least = int(acknowledged[-1]) if acknowledged else 0
    if len(set(numbers)) != 1:
        sys.exit(f"half a transaction: {sorted(set(numbers))}, and {least} was acknowledged")
    if numbers[0] < least:
        sys.exit(f"{least} was acknowledged, {numbers[0]} was found")


def main(**parts):
    parts[sys.argv[1]](*sys.argv[2:])
