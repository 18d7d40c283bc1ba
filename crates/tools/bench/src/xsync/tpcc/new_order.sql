\set w random(1, 2)
\set d random(1, 10)
\set c random(1, 300)
\set first random(1, 990)
BEGIN;
UPDATE district SET next_order = next_order + 1 WHERE w = :w AND d = :d RETURNING next_order AS o \gset
INSERT INTO orders VALUES (:w, :d, :o, :c, now());
INSERT INTO new_order VALUES (:w, :d, :o);
WITH chosen AS MATERIALIZED (
    SELECT i FROM stock WHERE w = :w AND i BETWEEN :first AND :first + 9 ORDER BY i FOR UPDATE)
UPDATE stock SET ordered = ordered + 5, quantity = quantity - 5 + CASE WHEN quantity < 15 THEN 91 ELSE 0 END
    FROM chosen WHERE stock.w = :w AND stock.i = chosen.i;
INSERT INTO order_line SELECT :w, :d, :o, i, 5, 5 * price, repeat('l', 24) FROM item WHERE i BETWEEN :first AND :first + 9;
END;
