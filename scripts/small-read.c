/* A reader in another process, for scripts/small.sh: shows the file `a` of the store DIR as its last commit has it. */
#include <stdio.h>
#include <unistd.h>
#include <untorn.h>

int main(int argc, char **argv) {
    char text[64];
    untorn_reader *reader = argc > 1 ? untorn_reader_open(argv[1]) : NULL;
    untorn_snapshot *snapshot = reader ? untorn_snapshot_take(reader) : NULL;
    untorn_snapshot_file *file = snapshot ? untorn_snapshot_open(snapshot, "a") : NULL;
    int64_t n = file ? untorn_snapshot_pread(file, text, sizeof text, 0) : -1;
    if (n >= 0) return write(1, text, (size_t)n) != n;
    fprintf(stderr, "%s\n", untorn_error_message());
    return 1;
}
