\set w random(1, 2)
\set d random(1, 10)
\set c random(1, 300)
BEGIN;
SELECT balance, payments FROM customer WHERE w = :w AND d = :d AND c = :c;
SELECT i, quantity, amount FROM order_line WHERE w = :w AND d = :d
    AND o = (SELECT max(o) FROM orders WHERE w = :w AND d = :d AND c = :c);
END;
