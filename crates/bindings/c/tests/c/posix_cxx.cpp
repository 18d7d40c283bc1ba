// Programs in C++ that reach their managed files by std::fstream and std::filesystem, whose calls no header can rename.
#include <untorn_posix.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <untorn.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::fprintf(stderr, "%s:%d: not true: %s\n  %s\n", __FILE__, __LINE__, #condition, untorn_error_message()); \
            std::_Exit(1);                                                                                             \
        }                                                                                                              \
    } while (0)

namespace fs = std::filesystem;

#ifdef __GLIBCXX__

static std::string contents(const char *path) {
    std::ifstream in(path, std::ios::binary);
    CHECK(in.is_open());
    return std::string(std::istreambuf_iterator<char>(in), {});
}

static int create(const char *path, const char *text) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && write(fd, text, std::strlen(text)) == (ssize_t)std::strlen(text) && fsync(fd) == 0);
    return fd;
}

// Kyoto Cabinet's BasicDB::copy: it syncs, and reads the file by its name. The stream would find what the last checkpoint
// left, here nothing.
static void backup_by_streams() {
    int fd = create("streamed.db", "synced");
    std::ifstream in("streamed.db");
    CHECK(!in.is_open() && in.fail() && errno == ENOTSUP);
    std::ofstream out("streamed.db", std::ios::app);
    CHECK(!out.is_open());
    std::fstream both(std::string("./streamed.db"));
    CHECK(!both);
    // By the renamed calls.
    char found[7] = "";
    FILE *stream = std::fopen("streamed.db", "r");
    CHECK(stream && std::fread(found, 1, 6, stream) == 6 && std::strcmp(found, "synced") == 0);
    CHECK(std::fclose(stream) == 0 && close(fd) == 0);
    CHECK(contents("streamed.db") == "synced");
}

// A stream reads a file after a crash only once it is recovered.
static void read_after_a_crash() {
    pid_t pid = fork();
    if (pid == 0) {
        create("crashed.db", "synced before the crash");
        raise(SIGKILL);
    }
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    CHECK(contents("crashed.db") == "synced before the crash");
    // A copy is made after recovery, too.
    pid = fork();
    if (pid == 0) {
        create("crashed.db", "synced before the second crash");
        raise(SIGKILL);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    CHECK(fs::copy_file("crashed.db", "crashed.copy"));
    CHECK(contents("crashed.copy") == "synced before the second crash");
}

static void renamed_and_removed() {
    int fd = create("first.db", "synced");
    CHECK(write(fd, " and more", 9) == 9 && fs::file_size("first.db") == 15);
    std::error_code error;
    CHECK(fs::file_size("first.db", error) == 15 && !error);
    fs::rename("first.db", "second.db");
    CHECK(!fs::exists("first.db") && untorn_fd_is_managed(fd) == 1);
    fs::resize_file("second.db", 6);
    CHECK(fs::file_size("second.db") == 6 && fsync(fd) == 0);
    // A copy would show the state of the last checkpoint.
    CHECK(!fs::copy_file("second.db", "copy", error) && error == std::errc::not_supported && !fs::exists("copy"));
    bool thrown = false;
    try {
        fs::copy_file("second.db", "copy");
    } catch (const fs::filesystem_error &e) {
        thrown = e.code() == std::errc::not_supported;
    }
    CHECK(thrown && !fs::exists("copy") && close(fd) == 0 && contents("second.db") == "synced");
    // Replaced while it is open.
    int old_fd = create("third.db", "old"), new_fd = create("third.db.tmp", "new");
    fs::rename("third.db.tmp", "third.db", error);
    CHECK(!error && close(old_fd) == 0 && close(new_fd) == 0 && contents("third.db") == "new");
    fd = open("third.db", O_RDWR);
    CHECK(fs::remove("third.db") && untorn_fd_is_managed(fd) == 0 && !fs::remove("third.db") && close(fd) == 0);
    CHECK(!fs::exists("third.db.untorn"));
}

// Other files are left to the C++ library.
static void everything_else() {
    std::ofstream("plain") << "text";
    CHECK(contents("plain") == "text" && fs::file_size("plain") == 4);
    CHECK(fs::copy_file("plain", "plain2") && fs::remove("plain") && !fs::remove("plain"));
    fs::rename("plain2", "plain3");
    fs::resize_file("plain3", 2);
    CHECK(contents("plain3") == "te" && fs::remove("plain3"));
    std::error_code error;
    fs::rename("plain3", "plain4", error);
    CHECK(error == std::errc::no_such_file_or_directory);
    bool thrown = false;
    try {
        CHECK(fs::file_size("nowhere/plain") == 0);
    } catch (const fs::filesystem_error &) {
        thrown = true;
    }
    CHECK(thrown && !std::ifstream("nowhere/plain").is_open());
}

#endif

int main(int argc, char **argv) {
    CHECK(argc == 2 && chdir(argv[1]) == 0);
#ifdef __GLIBCXX__
    everything_else();
    CHECK(untorn_manage("*.db") == 0 && untorn_manage("*.db.*") == 0);
    backup_by_streams();
    read_after_a_crash();
    renamed_and_removed();
    everything_else();
#endif
    return 0;
}
