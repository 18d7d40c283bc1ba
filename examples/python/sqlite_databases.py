# untorn.sqlite: SQLite databases whose transactions are commits; those of one store are committed together.
import os

import untorn.sqlite

os.mkdir("shop")
db = untorn.sqlite.connect("shop/stock.db", store="shop", isolation_level=None)
db.execute("ATTACH 'file:shop/orders.db?vfs=untorn&store=shop' AS orders")
db.execute("CREATE TABLE stock(what TEXT, pieces INTEGER)")
db.execute("CREATE TABLE orders.orders(what TEXT)")
db.execute("INSERT INTO stock VALUES ('apples', 3)")

db.execute("BEGIN")
db.execute("UPDATE stock SET pieces = pieces - 1")
db.execute("INSERT INTO orders VALUES ('apples')")
db.execute("COMMIT")

db.execute("BEGIN")
db.execute("UPDATE stock SET pieces = pieces - 1")
db.execute("ROLLBACK")
assert db.execute("SELECT what, pieces FROM stock").fetchall() == [("apples", 2)]
assert db.execute("SELECT what FROM orders").fetchall() == [("apples",)]
db.close()
