-- A small TPC-C: 2 warehouses, 10 districts each, 300 customers a district, 1,000 items.
CREATE TABLE warehouse (w int PRIMARY KEY, received numeric NOT NULL);
CREATE TABLE district (w int, d int, received numeric NOT NULL, next_order int NOT NULL, PRIMARY KEY (w, d));
CREATE TABLE customer (w int, d int, c int, balance numeric NOT NULL, payments int NOT NULL, data text NOT NULL, PRIMARY KEY (w, d, c));
CREATE TABLE history (w int, d int, c int, at timestamp NOT NULL, amount numeric NOT NULL);
CREATE TABLE orders (w int, d int, o int, c int NOT NULL, at timestamp NOT NULL, PRIMARY KEY (w, d, o));
CREATE INDEX ON orders (w, d, c);
CREATE TABLE new_order (w int, d int, o int, PRIMARY KEY (w, d, o));
CREATE TABLE item (i int PRIMARY KEY, price numeric NOT NULL, name text NOT NULL);
CREATE TABLE stock (w int, i int, quantity int NOT NULL, ordered int NOT NULL, data text NOT NULL, PRIMARY KEY (w, i));
CREATE TABLE order_line (w int, d int, o int, i int NOT NULL, quantity int NOT NULL, amount numeric NOT NULL, place text NOT NULL);
CREATE INDEX ON order_line (w, d, o);
INSERT INTO warehouse SELECT w, 0 FROM generate_series(1, 2) w;
INSERT INTO district SELECT w, d, 0, 1 FROM generate_series(1, 2) w, generate_series(1, 10) d;
INSERT INTO customer SELECT w, d, c, 0, 0, repeat('c', 300)
    FROM generate_series(1, 2) w, generate_series(1, 10) d, generate_series(1, 300) c;
INSERT INTO item SELECT i, i % 100 + 1, 'item ' || i FROM generate_series(1, 1000) i;
INSERT INTO stock SELECT w, i, 50, 0, repeat('s', 200) FROM generate_series(1, 2) w, generate_series(1, 1000) i;
ANALYZE;
