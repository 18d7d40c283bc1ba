/* Several files and names, all or nothing: moves 30 coins, and keeps the letter under a new name. With `crash` it kills
 * itself in the middle.
 * cc transfer.c $(pkg-config --cflags --libs untorn) -o transfer && ./transfer DIRECTORY [crash] */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <untorn.h>

static int failed(void) { return fprintf(stderr, "%s\n", untorn_error_message()), 1; }

static long coins(const untorn_file *file) {
    char text[16] = "0";
    return untorn_pread(file, text, sizeof text - 1, 0) < 0 ? -1 : atol(text);
}

static int set(untorn_file *file, long coins) {
    char text[16];
    int len = snprintf(text, sizeof text, "%6ld\n", coins);
    return untorn_pwrite(file, text, (size_t)len, 0) < 0;
}

int main(int argc, char **argv) {
    untorn_options create = {.size = sizeof create, .flags = UNTORN_CREATE};
    untorn_store *store = untorn_store_open(argc > 1 ? argv[1] : "bank", &create);
    if (!store) return failed();
    untorn_file *ann = untorn_open_at(store, "ann", UNTORN_CREATE, 0644), *bob = untorn_open_at(store, "bob", UNTORN_CREATE, 0644);
    if (!ann || !bob) return failed();
    if (coins(ann) + coins(bob) == 0 && (set(ann, 1000) || untorn_commit(ann))) return failed();
    printf("before: %ld + %ld\n", coins(ann), coins(bob));
    fflush(stdout);

    untorn_txn *txn = untorn_txn_begin(store);
    if (!txn || untorn_txn_add(txn, ann) || untorn_txn_add(txn, bob)) return failed();
    if (set(ann, coins(ann) - 30)) return failed();
    if (argc > 2) raise(SIGKILL);
    if (set(bob, coins(bob) + 30)) return failed();
    char name[32];
    snprintf(name, sizeof name, "receipt-%ld", coins(bob) / 30);
    untorn_file *receipt = untorn_txn_create(txn, name, 0644);
    if (!receipt || untorn_pwrite(receipt, "30 coins\n", 9, 0) < 0) return failed();
    if (untorn_txn_commit(txn)) return failed();
    printf("after: %ld + %ld, and %s\n", coins(ann), coins(bob), name);
    return untorn_store_close(store) ? failed() : 0;
}
