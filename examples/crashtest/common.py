"""What the examples share: `SCRIPT setup|run|check DIR ...`, and how a result is judged."""
import os, sys

ROUNDS = 60
KEYS = 20


def acknowledge(n):
    print(n, flush=True)


def judge(numbers):
    """All numbers that one transaction wrote are the same, and not less than what was acknowledged."""
    said = open(os.environ["UNTORN_ACKED"]).read().split()
    least = int(said[-1]) if said else 0
    if len(set(numbers)) != 1:
        sys.exit(f"half a transaction: {sorted(set(numbers))}, and {least} was acknowledged")
    if numbers[0] < least:
        sys.exit(f"{least} was acknowledged, {numbers[0]} is there")


def main(**parts):
    parts[sys.argv[1]](*sys.argv[2:])
