#!/bin/bash
# SQLite with Untorn's extension: sqlite.sh DIR. sqlite3 is killed in the middle of a transaction; the transactions before
# it are kept, in two databases of one store. EXTENSION names libuntorn_sqlite.so without `.so`.
set -euo pipefail
extension=${EXTENSION:-/usr/local/lib/untorn/libuntorn_sqlite}
mkdir -p "$1"
cd "$1"

# Statements on standard input, on both databases.
sql() {
    { printf '%s\n' ".load $extension" ".open file:stock.db?vfs=untorn&store=." \
        "ATTACH 'file:orders.db?vfs=untorn&store=.' AS orders;"; cat; } >statements
    sqlite3 :memory: <statements
}

sql <<<'CREATE TABLE stock(pieces); INSERT INTO stock VALUES (100); CREATE TABLE orders.orders(number);'

# Each transaction changes both databases, and is one commit.
sql <<'END' || echo "sqlite3 was killed in the fourth transaction"
BEGIN; UPDATE stock SET pieces = pieces - 1; INSERT INTO orders VALUES (1); COMMIT;
BEGIN; UPDATE stock SET pieces = pieces - 1; INSERT INTO orders VALUES (2); COMMIT;
BEGIN; UPDATE stock SET pieces = pieces - 1; INSERT INTO orders VALUES (3); COMMIT;
BEGIN; UPDATE stock SET pieces = pieces - 50;
.shell kill -KILL $PPID
END
sql <<<"SELECT pieces || ' pieces, ' || (SELECT count(*) FROM orders) || ' orders' FROM stock;"
