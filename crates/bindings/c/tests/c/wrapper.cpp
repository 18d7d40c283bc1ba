/* The C++ classes, and the renaming header in a C++ source whose methods have the names of calls. */
#include <untorn_posix.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <untorn.hpp>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::fprintf(stderr, "%s:%d: not true: %s\n  %s\n", __FILE__, __LINE__, #condition, untorn_error_message()); \
            std::_Exit(1);                                                                                             \
        }                                                                                                              \
    } while (0)

template <class Call> static void fails(int code, untorn_error kind, Call call) {
    try {
        call();
    } catch (const untorn::error &e) {
        CHECK(e.code() == code && e.kind() == kind && *e.what());
        return;
    }
    CHECK(!"did not throw");
}

template <class T> constexpr bool moves_only = std::is_nothrow_move_constructible_v<T> &&
                                               std::is_nothrow_move_assignable_v<T> &&
                                               !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(moves_only<untorn::store> && moves_only<untorn::file> && moves_only<untorn::map> &&
              moves_only<untorn::txn> && moves_only<untorn::ticket> && moves_only<untorn::gate> &&
              moves_only<untorn::output> && moves_only<untorn::reader> && moves_only<untorn::snapshot> &&
              moves_only<untorn::snapshot_file> && moves_only<untorn::follow> && moves_only<untorn::read_map>);

static void files_and_transactions() {
    auto store = untorn::store::open_or_create("store");
    untorn::file a = store.open_or_create_file("a"), b = store.open_or_create_file("b", 0600);
    a.write("one", 0);
    CHECK(b.append("two") == 0 && b.append("!") == 3 && b.size() == 4);
    untorn::syncv({a, b});
    a.write("ONE", 0);
    a.rollback();
    CHECK(a.read(100, 0) == "one" && b.path() == "b" && store.path() == "store");
    {
        untorn::txn txn = store.begin();
        txn.mkdir("dir");
        untorn::file c = txn.create("dir/c");
        c.write("three", 0);
        txn.rename("b", "dir/b");
        txn.commit();
        fails(EBADF, UNTORN_E_BAD_HANDLE, [&] { txn.commit(); });
    }
    {
        untorn::txn dropped = store.begin();
        dropped.unlink("a");
    }
    CHECK(store.open_file("dir/b").read(9, 0) == "two!");
    CHECK(store.open_file("a", UNTORN_RDONLY).read(9, 0) == "one");
    untorn::ticket ticket = a.commit_async();
    ticket.wait();
    CHECK(ticket.poll());
    untorn::syncv_async({a, b}).wait();
    {
        int ends[2];
        char said[9] = {};
        CHECK(pipe(ends) == 0);
        untorn::gate gate;
        untorn::output output = gate.add(ends[1]);
        output.write("told", 4, a.commit_async());
        output.write("more", 4);
        gate.drain();
        CHECK(read(ends[0], said, 8) == 8 && std::strcmp(said, "toldmore") == 0);
        close(ends[0]);
        close(ends[1]);
        fails(EBADF, UNTORN_E_IO, [&] { gate.add(12345); });
    }
    CHECK(store.status().commits >= 4 && store.status_json().find("\"store_id\"") != std::string::npos);
    fails(ENOENT, UNTORN_E_IO, [&] { store.open_file("missing"); });
    fails(EINVAL, UNTORN_E_INVALID, [&] { untorn::syncv({}); });

    untorn::file moved = std::move(a);
    fails(EBADF, UNTORN_E_BAD_HANDLE, [&] { a.size(); });
    CHECK(moved.duplicate().size() == 3);
    moved = std::move(b);
    CHECK(moved.size() == 4);
    store.close();
    fails(EBADF, UNTORN_E_BAD_HANDLE, [&] { moved.size(); });
    untorn::put("store/a", "put");
}

static void maps() {
    struct account {
        std::uint64_t coins, moves;
    };
    untorn::file file("accounts", UNTORN_CREATE);
    file.truncate(2 * sizeof(account));
    untorn::map map = file.map();
    account *accounts = map.as<account>();
    accounts[0] = {70, 1};
    accounts[1] = {30, 1};
    map.msync();
    accounts[0].coins = 0;
    map.rollback();
    CHECK(accounts[0].coins == 70 && map.size() == 2 * sizeof(account));
    map.resize(1 << 20);
    map.mark_dirty(accounts, 8);
    map.msync_async().wait();
    map.reclaim();
    CHECK(map.size() == 1 << 20 && map.data() == accounts && map.tracker() >= 1);
    map.mark_dirty(accounts[1]);
    fails(EINVAL, UNTORN_E_INVALID, [&] { map.mark_dirty(accounts - 1, 1); });
    map.close();
    untorn::map_options options;
    options.tracker = UNTORN_TRACKER_EXPLICIT;
    {
        untorn::map told = file.map(options);
        account *of_told = told.as<account>();
        of_told[0].coins = 1;
        of_told[1].coins = 2;
        told.mark_dirty(of_told[1].coins);
        told.msync();
        CHECK(told.tracker() == UNTORN_TRACKER_EXPLICIT);
    }
    map = file.map();
    accounts = map.as<account>();
    CHECK(accounts[0].coins == 70 && accounts[1].coins == 2);
    file.close();
    map.close();
    fails(EBADF, UNTORN_E_BAD_HANDLE, [&] { map.msync(); });
    untorn::map_options missing;
    missing.len = 1 << 30;
    fails(EINVAL, UNTORN_E_INVALID, [&] { untorn::file("accounts").map(missing); });
}

/* Reads as in another process. */
static void readers() {
    fails(ENOENT, UNTORN_E_IO, [] { untorn::reader("missing"); });
    auto store = untorn::store::open_or_create("read");
    untorn::file a = store.open_or_create_file("a", 0600);
    a.write(std::string_view("o\0e", 3), 0);
    a.commit();
    untorn::reader reader("read");
    CHECK(reader.read("a") == std::string("o\0e", 3) && reader.wait_for(store.status().lsn));
    CHECK(!reader.wait_for(store.status().lsn + 1, 1));
    untorn::follow follow = reader.follow();
    CHECK(!follow.next(0));
    untorn::snapshot snapshot = reader.snapshot();
    untorn::snapshot_file file = snapshot.open("a");
    CHECK(snapshot.lsn() <= store.status().lsn && snapshot.list() == std::vector<std::string>{"a"});
    CHECK(snapshot.metadata("a").len == 3 && snapshot.metadata("").is_directory);
    a.write("ONE", 0);
    a.commit();
    const untorn::followed commit = follow.next();
    CHECK(commit && !commit->missed && commit->changes_len == 1 && commit->last_lsn > snapshot.lsn());
    CHECK(commit->changes[0]->kind == UNTORN_CHANGE_WRITTEN && std::strcmp(commit->changes[0]->path, "a") == 0);
    a.write("later", 0);
    a.commit();
    char last[2];
    CHECK(follow.read(*commit, 0) == "ONE" && follow.read(*commit, 0, last, 2, 2) == 1 && last[0] == 'E');
    fails(EINVAL, UNTORN_E_INVALID, [&] { follow.read(*commit, 1); });
    const untorn::followed later = follow.next();
    fails(EINVAL, UNTORN_E_INVALID, [&] { follow.read(*commit, 0); });
    a.write("ONE", 0);
    a.truncate(3);
    a.commit();
    CHECK(follow.read(*later, 0) == "later");
    CHECK(file.read(9, 2) == "e" && file.size() == 3 && reader.read("a") == "ONE");
    snapshot.check();
    store.checkpoint();
    snapshot.check();
    CHECK(file.read(9, 0) == std::string("o\0e", 3) && snapshot.open("a").size() == 3);
    const int copy = ::open("copy", O_RDWR | O_CREAT, 0600);
    CHECK(copy >= 0 && file.copy(copy) == 3 && ::close(copy) == 0);
    fails(EBADF, UNTORN_E_BAD_HANDLE, [&] { file.copy(copy); });
    untorn::follow again = reader.follow_from(commit->last_lsn);
    CHECK(again.lsn() == commit->last_lsn);
    const untorn::followed after = again.next();
    CHECK(after && after->last_lsn == later->last_lsn && again.lsn() == later->last_lsn);
    CHECK(again.read(*after, 0) == "later");
    fails(EEXIST, UNTORN_E_CONFLICT, [&] { reader.follow_from(1000000); });
    snapshot.refresh();
    fails(ENOENT, UNTORN_E_IO, [&] { snapshot.list("missing"); });
    fails(ENOENT, UNTORN_E_IO, [&] { snapshot.open("missing"); });
    fails(ENOENT, UNTORN_E_IO, [&] { snapshot.metadata("missing"); });
    file = snapshot.open("a");
    CHECK(file.read(9, 0) == "ONE");
    untorn::read_map map = reader.map("a");
    CHECK(map.bytes() == "ONE" && !map.refresh() && map.lsn() >= snapshot.lsn());
    fails(ENOENT, UNTORN_E_IO, [&] { reader.map("missing"); });
    untorn::reader moved = std::move(reader);
    fails(EBADF, UNTORN_E_BAD_HANDLE, [&] { reader.read("a"); });
    CHECK(moved.read("a") == "ONE");
}

/* Methods of these names are not renamed; the calls in the methods are. */
struct log {
    int fd;
    bool open(const char *path) { return (fd = ::open(path, O_RDWR | O_CREAT, 0644)) >= 0; }
    ssize_t read(void *buf, size_t len) { return ::pread(fd, buf, len, 0); }
    ssize_t write(const char *text) { return ::pwrite(fd, text, std::strlen(text), 0); }
    bool close() { return ::close(fd) == 0; }
};

static void renamed() {
    log log;
    CHECK(untorn_manage("log") == 0 && log.open("log") && ::ftruncate(log.fd, 100) == 0);
    void *at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, log.fd, 0);
    CHECK(at != MAP_FAILED && untorn_fd_is_managed(log.fd) == 1);
    CHECK(log.write("kept") == 4 && ::msync(at, 4096, MS_SYNC) == 0);
    CHECK(log.write("lost") == 4 && ::munmap(at, 4096) == 0 && log.close());
    CHECK(log.open("log"));
    char buf[4];
    CHECK(log.read(buf, 4) == 4 && std::memcmp(buf, "kept", 4) == 0 && log.close());
}

int main(int argc, char **argv) {
    CHECK(argc == 2 && chdir(argv[1]) == 0);
    files_and_transactions();
    maps();
    readers();
    renamed();
    return 0;
}
