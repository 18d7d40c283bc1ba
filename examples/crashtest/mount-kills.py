#!/usr/bin/python3
"""Kills programs on a mounted store together with the daemon that serves it, mounts the store again, and lets each
program's own check look: nothing is damaged, and nothing that was acknowledged is lost.

    mount-kills.py [--kills 10] [--seed 1] [--mount untorn-mount] [--on DIRECTORY] [PROGRAM…]

The stores are made in DIRECTORY (a new one in /tmp). A daemon that does not end, a program that hangs, and a store that
cannot be mounted are violations, too. Needs the packages python3-lmdb, python3-gdbm and mariadb-server for the rows
of these names.
"""

import argparse, os, random, shutil, signal, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
# Name: script and arguments, option of the mount, whether what the program says is durable. (`git` does not flush the
# name of what it renames, and with `--commit=close` nobody waits for a commit: these are whole, and may be older.)
ROWS = {
    "sqlite-without-journal": (["sqlite.py", "off", "full"], "--commit=fsync", True),
    "sqlite-rollback": (["sqlite.py", "delete", "extra"], "--commit=fsync", True),
    "sqlite-wal": (["sqlite.py", "wal", "full"], "--commit=fsync", True),
    "lmdb": (["lmdb_example.py"], "--commit=fsync", True),
    "kyoto-auto-sync": (["kyoto.py", "each"], "--commit=fsync", True),
    "gdbm": (["gdbm.py", "sync"], "--commit=fsync", True),
    "mariadb-pages-once": (["mariadb.py", "once"], "--commit=fsync", True),
    "mapped": (["mapped.py"], "--commit=fsync", True),
    "git": (["git.sh"], "--commit=fsync", False),
    "sed-i-and-sync": (["sed.sh", "sync"], "--commit=fsync", True),
    "sed-i-commit-close": (["sed.sh"], "--commit=close", False),
    "sed-i-commit-write": (["sed.sh"], "--commit=write", True),
    "several-commit-store": (["several.py"], "--commit=store", True),
    "sqlite-commit-store": (["sqlite.py", "off", "full"], "--commit=store", True),
    "sqlite-wal-commit-write": (["sqlite.py", "wal", "off"], "--commit=write", True),
}
PATIENCE = 20


class Violation(Exception):
    pass


class Store:
    def __init__(self, place, mount, option):
        self.store, self.at, self.mount, self.option = place + "/store", place + "/mnt", mount, option
        os.mkdir(self.at)
        self.daemon = None

    def begin(self):
        command = [self.mount, "--foreground", "--no-supervisor", self.option, self.store, self.at]
        self.daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + PATIENCE
        while not os.path.ismount(self.at):
            if self.daemon.poll() is not None:
                raise Violation("it cannot be mounted again: " + self.daemon.stderr.read().strip())
            if time.monotonic() > end:
                raise Violation("mounting hangs")
            time.sleep(0.002)

    def kill(self):
        self.daemon.send_signal(signal.SIGKILL)
        ended(self.daemon, "the daemon")

    def end(self):
        subprocess.run([self.mount, "umount", self.at], stdout=subprocess.DEVNULL, check=True)
        ended(self.daemon, "the daemon")


def ended(process, what, patience=PATIENCE):
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        raise Violation(f"{what} (process {process.pid}) does not end") from None


def row(name, options, place):
    (script, *arguments), of_mount, durable = ROWS[name]
    command = [sys.executable] if script.endswith(".py") else []
    command.append(f"{HERE}/{script}")
    acknowledged = place + "/acked" if durable else os.devnull
    environment = {**os.environ, "PYTHONPATH": HERE, "PYTHONDONTWRITEBYTECODE": "1", "UNTORN_ACKED": acknowledged}
    by = random.Random(f"{options.seed} {name}")
    store = Store(place, options.mount, of_mount)

    def part(what, **more):
        return subprocess.Popen([*command, what, store.at, *arguments], env=environment, cwd="/", **more)

    # How long the program takes is found out by the first run, which nobody kills.
    longest, cut = None, 0
    store.begin()
    for n in range(options.kills + 1):
        for left in os.scandir(store.at):
            shutil.rmtree(left) if left.is_dir(follow_symlinks=False) else os.unlink(left)
        if part("setup").wait(PATIENCE) != 0:
            store.end()
            return None
        subprocess.run([options.mount, "sync", store.at], check=True)
        with open(acknowledged, "w") as acked:
            began = time.monotonic()
            program = part("run", stdout=acked, stderr=subprocess.DEVNULL, start_new_session=True)
        if longest is None:
            # Not killed, it may take long on a busy machine.
            ended(program, "the program", 10 * PATIENCE)
            if program.returncode != 0:
                raise Violation("the program fails on a mount")
            longest = time.monotonic() - began
        else:
            try:
                program.wait(by.uniform(0, longest))
            except subprocess.TimeoutExpired:
                cut += 1
                # Not one after the other: the program would say that it is done, where it does not look at errors.
                os.killpg(program.pid, signal.SIGSTOP)
            store.kill()
            if program.returncode is None:
                os.killpg(program.pid, signal.SIGKILL)
            ended(program, "the program")
            subprocess.run([store.mount, "umount", store.at], stdout=subprocess.DEVNULL, check=True)
            store.begin()
        check = part("check", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = check.communicate(timeout=PATIENCE)[0]
        if check.returncode != 0:
            raise Violation(f"kill {n}: {said.strip()}")
    store.end()
    return cut


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mount", default="untorn-mount")
    parser.add_argument("--on")
    parser.add_argument("program", nargs="*", choices=[*ROWS, []])
    options = parser.parse_args()
    print(f"seed {options.seed}")
    violated = False
    for name in options.program or ROWS:
        place = tempfile.mkdtemp(prefix="untorn-kills-", dir=options.on)
        try:
            cut = row(name, options, place)
        except Violation as violation:
            violated = True
            print(f"{name:24} VIOLATED: {violation}; what is left is in {place}", flush=True)
            continue
        said = "skipped: it cannot begin here" if cut is None else f"{options.kills} kills, {cut} in the middle: whole"
        print(f"{name:24} {said}", flush=True)
        shutil.rmtree(place)
    sys.exit(1 if violated else 0)


main()
