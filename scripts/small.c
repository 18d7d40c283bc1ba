/* A small program for scripts/small.sh: it commits two files as one, in the store DIR.
 *
 *     small DIR TEXT         writes TEXT to both, commits, closes
 *     small DIR TEXT crash   the same, and dies in place of the close: the next opening recovers
 *     small DIR TEXT show    first writes both files as they are to standard output
 *     small DIR TEXT hold    waits between commit and close until standard input ends
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <untorn.h>

static int failed(void) {
    fprintf(stderr, "%s\n", untorn_error_message());
    return 1;
}

static int show(untorn_file *file) {
    char text[64];
    int64_t n = untorn_pread(file, text, sizeof text, 0);
    return n < 0 || write(1, text, (size_t)n) != n;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *how = argc > 3 ? argv[3] : "";
    untorn_options create = {.size = sizeof create, .flags = UNTORN_CREATE};
    untorn_store *store = untorn_store_open(argv[1], &create);
    if (!store) return failed();
    untorn_file *both[] = {untorn_open_at(store, "a", UNTORN_CREATE, 0644), untorn_open_at(store, "b", UNTORN_CREATE, 0644)};
    if (!both[0] || !both[1]) return failed();
    for (int i = 0; i < 2; i++) {
        if (!strcmp(how, "show") && show(both[i])) return failed();
        if (untorn_pwrite(both[i], argv[2], strlen(argv[2]), 0) < 0) return failed();
    }
    if (untorn_syncv(both, 2)) return failed();
    if (!strcmp(how, "crash")) raise(SIGKILL);
    if (!strcmp(how, "hold")) for (puts("held"), fflush(stdout); getchar() != EOF;) {}
    return untorn_store_close(store) ? failed() : 0;
}
