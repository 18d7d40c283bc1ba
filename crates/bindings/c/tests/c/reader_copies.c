/* Commits that are held, and copies of files and heaps, while their owner is another process. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

static int orders[2], answers[2];

/* Owns a heap with one number in it, which each order counts up. */
static void own(void) {
    close(orders[1]);
    close(answers[0]);
    untorn_store *store = open_store("store", NULL);
    untorn_heap_options how = {.size = sizeof how, .address_space = 64 << 20, .flags = UNTORN_CREATE};
    untorn_heap *heap = untorn_heap_open_at(store, "heap", &how);
    CHECK(heap);
    int *number = untorn_heap_calloc(heap, 1, sizeof *number);
    CHECK(number && untorn_heap_set_root(heap, "number", number, "int", sizeof(int), _Alignof(int), 0) == 0);
    untorn_file *file = untorn_open_at(store, "text", UNTORN_CREATE, 0644);
    CHECK(file);
    char order;
    while (read(orders[0], &order, 1) == 1) {
        untorn_status status = {.size = sizeof status};
        if (order == '#') {
            CHECK(untorn_store_checkpoint(store) == 0);
        } else if (order == '?') {
            CHECK(untorn_store_status(store, &status) == 0);
        } else {
            (*number)++;
            CHECK(untorn_pwrite(file, &order, 1, 0) == 1 && untorn_commit(file) == 0);
            CHECK(untorn_heap_commit(heap) == 0);
        }
        CHECK(write(answers[1], &order, 1) == 1);
        if (order == '?') {
            const uint64_t told[2] = {status.held, status.kept_bytes};
            CHECK(write(answers[1], told, sizeof told) == sizeof told);
        }
    }
    _exit(0);
}

static void order(char what) {
    char answer;
    CHECK(write(orders[1], &what, 1) == 1 && read(answers[0], &answer, 1) == 1 && answer == what);
}

static int number_in(const untorn_read_heap *heap) {
    const void *found;
    CHECK(untorn_read_heap_root(heap, "number", "int", sizeof(int), _Alignof(int), 0, &found) == 1);
    return *(const int *)found;
}

static void *close_heap(void *heap) {
    for (int i = 0; i < 1000; i++) (void)untorn_read_heap_lsn(heap);
    return (void *)(intptr_t)untorn_read_heap_close(heap);
}

static void heaps(const untorn_reader *reader) {
    untorn_read_heap *heap = untorn_read_heap_open(reader, "heap");
    CHECK(heap && number_in(heap) == 1);
    order('b');
    CHECK(number_in(heap) == 1 && untorn_read_heap_refresh(heap) == 1 && number_in(heap) == 2);
    CHECK(untorn_read_heap_refresh(heap) == 0 && untorn_read_heap_lsn(heap) > 0);
    const void *found = &found;
    CHECK(untorn_read_heap_root(heap, "none", "int", 4, 4, 0, &found) == 0 && !found);
    FAILS(untorn_read_heap_root(heap, "number", "long", 8, 8, 0, &found), EINVAL, UNTORN_E_LAYOUT_CHANGED);
    FAILS(untorn_read_heap_root(heap, "number", "int", 4, 3, 0, &found), EINVAL, UNTORN_E_INVALID);
    FAILS(untorn_read_heap_root(heap, NULL, "int", 4, 4, 0, &found), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_read_heap_root(heap, "number", "int", 4, 4, 0, NULL), EFAULT, UNTORN_E_NULL);
    FAILS(untorn_read_heap_open(reader, "heap"), EINVAL, UNTORN_E_INVALID);
    CHECK(strstr(untorn_error_message(), "always at"));
    FAILS(untorn_read_heap_open(reader, "text"), EMEDIUMTYPE, UNTORN_E_FOREIGN);
    FAILS(untorn_read_heap_open(reader, NULL), EFAULT, UNTORN_E_NULL);
    BAD_HANDLE(untorn_read_heap_open(NULL, "heap"));
    BAD_HANDLE(untorn_heap_commit((untorn_heap *)heap));
    CHECK(strstr(untorn_error_message(), "only reads"));
    /* Two threads close it, and one of them succeeds. */
    pthread_t threads[2];
    void *results[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, close_heap, heap) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], &results[i]) == 0);
    CHECK((intptr_t)results[0] + (intptr_t)results[1] == -1);
    BAD_HANDLE(untorn_read_heap_lsn(heap));
    BAD_HANDLE(untorn_read_heap_refresh(heap));
    BAD_HANDLE(untorn_read_heap_close(heap));
    BAD_HANDLE(untorn_read_heap_root(heap, "number", "int", 4, 4, 0, &found));
    heap = untorn_read_heap_open(reader, "heap");
    CHECK(heap && untorn_read_heap_close(heap) == 0); /* Its address is free again. */
}

static void check_map(const untorn_read_map *map, char expected) {
    size_t len;
    const char *bytes = untorn_read_map_bytes(map, &len);
    CHECK(bytes && len == 1 && bytes[0] == expected && untorn_read_map_bytes(map, NULL) == bytes);
}

static void maps(const untorn_reader *reader) {
    untorn_read_map *map = untorn_read_map_open(reader, "text");
    CHECK(map);
    check_map(map, 'b');
    order('c');
    check_map(map, 'b');
    CHECK(untorn_read_map_refresh(map) == 1 && untorn_read_map_refresh(map) == 0 && untorn_read_map_lsn(map) > 0);
    check_map(map, 'c');
    FAILS(untorn_read_map_open(reader, "missing"), ENOENT, UNTORN_E_IO);
    FAILS(untorn_read_map_open(reader, NULL), EFAULT, UNTORN_E_NULL);
    CHECK(untorn_read_map_close(map) == 0);
    BAD_HANDLE(untorn_read_map_bytes(map, NULL));
    BAD_HANDLE(untorn_read_map_lsn(map));
    BAD_HANDLE(untorn_read_map_refresh(map));
    BAD_HANDLE(untorn_read_map_close(map));
}

/* The kept bytes, as untorn_status of the owner has them. */
static void kept(uint64_t *held, uint64_t *bytes) {
    order('?');
    CHECK(read(answers[0], held, sizeof *held) == sizeof *held && read(answers[0], bytes, sizeof *bytes) == sizeof *bytes);
}

/* A snapshot is held until it and its files are closed. A forked child does not hold it. */
static void held(const untorn_reader *reader) {
    untorn_snapshot *snapshot = untorn_snapshot_take(reader);
    CHECK(snapshot);
    untorn_snapshot_file *file = untorn_snapshot_open(snapshot, "text");
    CHECK(file);
    int quit[2];
    char byte;
    CHECK(pipe(quit) == 0);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(quit[1]);
        FAILS(untorn_snapshot_check(snapshot), ECHILD, UNTORN_E_FORKED);
        FAILS(untorn_snapshot_pread(file, &byte, 1, 0), ECHILD, UNTORN_E_FORKED);
        CHECK(read(quit[0], &byte, 1) == 0);
        _exit(0);
    }
    close(quit[0]);
    uint64_t commits, bytes;
    for (char what = 'd'; what < 'g'; what++) {
        order(what);
        order('#');
        CHECK(untorn_snapshot_pread(file, &byte, 1, 0) == 1 && byte == 'c');
    }
    kept(&commits, &bytes);
    CHECK(commits == 1 && bytes > 0);
    /* The file alone holds it, too. */
    CHECK(untorn_snapshot_close(snapshot) == 0);
    order('g');
    order('#');
    CHECK(untorn_snapshot_pread(file, &byte, 1, 0) == 1 && byte == 'c');
    CHECK(untorn_snapshot_file_close(file) == 0);
    order('h');
    order('#');
    kept(&commits, &bytes);
    CHECK(commits == 0 && bytes == 0);
    close(quit[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void who_may_read(void) {
    untorn_options options = {.size = sizeof options, .flags = UNTORN_READERS_GROUP};
    CHECK(untorn_store_close(open_store("group", &options)) == 0);
    options.flags = UNTORN_READERS_GROUP | UNTORN_READERS_ALL;
    CHECK(untorn_store_close(open_store("all", &options)) == 0);
    CHECK(untorn_store_close(open_store("owner", NULL)) == 0);
    struct stat st;
    CHECK(stat("group/.untorn/journal", &st) == 0 && (st.st_mode & 0777) == 0750);
    CHECK(stat("group/.untorn/readers", &st) == 0 && (st.st_mode & 0777) == 0640);
    CHECK(stat("all/.untorn/journal/header", &st) == 0 && (st.st_mode & 0777) == 0644);
    CHECK(stat("owner/.untorn", &st) == 0 && (st.st_mode & 0777) == 0700);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    CHECK(pipe(orders) == 0 && pipe(answers) == 0);
    fflush(NULL);
    pid_t owner = fork();
    CHECK(owner >= 0);
    if (owner == 0) own();
    close(orders[0]);
    close(answers[1]);
    order('a');
    untorn_reader *reader = untorn_reader_open("store");
    CHECK(reader);
    heaps(reader);
    maps(reader);
    held(reader);
    who_may_read();
    close(orders[1]);
    int status;
    CHECK(waitpid(owner, &status, 0) == owner && status == 0);
    CHECK(untorn_reader_close(reader) == 0);
    return 0;
}
