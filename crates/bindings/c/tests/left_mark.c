/* A program under the porting header. `first DIR`: a first commit of DIR/new.m; `unclosed DIR`: the same, and an end
   without a close; `look DIR`: opens DIR/new.m for reading; `rename DIR`: to DIR/db.m; `read DIR`: prints DIR/db.m. */
#include <untorn.h>
#include <untorn_posix.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", what, strerror(errno), untorn_error_message());
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3 || chdir(argv[2]) || untorn_manage("*.m")) return failed("begin");
    if (!strcmp(argv[1], "first")) {
        int fd = open("new.m", O_RDWR);
        if (fd < 0 || pwrite(fd, "NEW", 3, 0) != 3 || fsync(fd)) return failed("commit");
        return 0;
    }
    if (!strcmp(argv[1], "unclosed")) {
        int fd = open("new.m", O_RDWR);
        static char text[100000];
        memset(text, 'N', sizeof text);
        if (fd < 0 || pwrite(fd, text, sizeof text, 0) != sizeof text || fsync(fd)) return failed("commit");
        _exit(0);
    }
    if (!strcmp(argv[1], "look")) return open("new.m", O_RDONLY) < 0 ? failed("look") : 0;
    if (!strcmp(argv[1], "rename")) return rename("new.m", "db.m") ? failed("rename") : 0;
    char text[16] = {0};
    int fd = open("db.m", O_RDWR);
    if (fd < 0 || pread(fd, text, sizeof text - 1, 0) < 0) return failed("read");
    puts(text);
    return close(fd) ? failed("close") : 0;
}
