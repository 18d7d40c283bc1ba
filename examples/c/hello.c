/* Two files that always match: after a crash at any moment both hold the old text, or both the new.
 * cc hello.c $(pkg-config --cflags --libs untorn) -o hello && ./hello DIRECTORY */
#include <stdio.h>
#include <untorn.h>

int main(int argc, char **argv) {
    untorn_options create = {.size = sizeof create, .flags = UNTORN_CREATE};
    untorn_store *store;
    untorn_file *files[2];
    if (!(store = untorn_store_open(argc > 1 ? argv[1] : ".", &create)) ||
        !(files[0] = untorn_open_at(store, "account-a", UNTORN_CREATE, 0644)) ||
        !(files[1] = untorn_open_at(store, "account-b", UNTORN_CREATE, 0644)) ||
        untorn_pwrite(files[0], "70 coins\n", 9, 0) < 0 || untorn_pwrite(files[1], "30 coins\n", 9, 0) < 0 ||
        untorn_syncv(files, 2) || untorn_store_close(store)) {
        fprintf(stderr, "%s\n", untorn_error_message());
        return 1;
    }
    return 0;
}
