\set w random(1, 2)
\set d random(1, 10)
\set c random(1, 300)
\set amount random(1, 5000)
BEGIN;
UPDATE warehouse SET received = received + :amount WHERE w = :w;
UPDATE district SET received = received + :amount WHERE w = :w AND d = :d;
UPDATE customer SET balance = balance - :amount, payments = payments + 1 WHERE w = :w AND d = :d AND c = :c;
INSERT INTO history VALUES (:w, :d, :c, now(), :amount);
END;
