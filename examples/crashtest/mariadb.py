"""MariaDB (InnoDB): one transaction updates twenty rows. With `once`, pages are written once (`innodb_doublewrite=0`),
which relies on the file system for whole pages; with `twice`, the server guards them itself. `DIR once|twice`"""
import os, socket, subprocess, sys, time
from common import KEYS, acknowledge, oracle, main, rounds

SETTINGS = """--no-defaults --skip-grant-tables --skip-networking --innodb-buffer-pool-size=24M --innodb-log-file-size=8M
    --innodb-flush-log-at-trx-commit=1 --skip-log-bin --performance-schema=0 --innodb-fast-shutdown=1"""


class Server:
    def __init__(self, dir, how):
        self.data, self.log = dir + "/data", dir + "/log"
        os.makedirs(self.data, exist_ok=True)
        self.socket = dir + "/socket"
        double = "--innodb-doublewrite=" + ("1" if how == "twice" else "0")
        user = ["--user=root"] if os.getuid() == 0 else []
        command = ["mariadbd", *SETTINGS.split(), double, *user, f"--datadir={self.data}", f"--socket={self.socket}",
                   f"--pid-file={self.socket}.pid"]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 60
        # The socket has its name before it accepts connections.
        while socket.socket(socket.AF_UNIX).connect_ex(self.socket) != 0:
            if self.process.poll() is not None or time.monotonic() > end:
                self.fail("MariaDB does not begin")
            time.sleep(0.01)
        words = ["mariadb", "--no-defaults", f"--socket={self.socket}", "--skip-column-names", "--batch", "--unbuffered"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.client = subprocess.Popen(words, **pipes, text=True)

    def call(self, statements):
        """Runs statements, and returns the rows that they give."""
        self.client.stdin.write(statements + " SELECT 'done';\n")
        self.client.stdin.flush()
        rows = []
        for line in self.client.stdout:
            if line == "done\n":
                return rows
            rows.append(line.rstrip("\n").split("\t"))
        self.fail(f"MariaDB ended the connection: {rows}")

    def fail(self, what):
        self.process.kill()
        self.process.wait()
        sys.exit(f"{what}: " + "".join(open(self.log).readlines()[-8:]))

    def put(self, n):
        rows = ", ".join(f"({key}, {n}, REPEAT('{n % 10}', 3000))" for key in range(KEYS))
        self.call(f"BEGIN; REPLACE INTO a.t VALUES {rows}; COMMIT;")

    def end(self):
        self.client.stdin.close()
        self.client.wait()
        self.process.terminate()
        self.process.wait()


def setup(dir, how):
    server = Server(dir, how)
    server.call("CREATE DATABASE a; CREATE TABLE a.t (k INT PRIMARY KEY, n INT, filling TEXT) ENGINE=InnoDB;")
    server.put(0)
    server.end()


def run(dir, how):
    server = Server(dir, how)
    for n in rounds():
        server.put(n)
        acknowledge(n)
    server.end()


def check(dir, how):
    server = Server(dir, how)
    found = [int(n) for (n,) in server.call("SELECT n FROM a.t ORDER BY k;")]
    said = server.call("CHECK TABLE a.t EXTENDED;")
    server.end()
    if said[-1][-1] != "OK":
        sys.exit(f"CHECK TABLE: {said}")
    for name in ["ibdata1", "a/t.ibd"]:
        checked = subprocess.run(["innochecksum", f"{server.data}/{name}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if checked.returncode != 0:
            sys.exit(f"innochecksum {name}: {checked.stdout}")
    oracle(found)


main(setup=setup, run=run, check=check)
