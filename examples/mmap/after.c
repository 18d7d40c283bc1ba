/* Coins of a thousand accounts in a mapped file: moved about in rounds, never more or fewer of them, also
 * after a crash at any moment.
 * cc after.c $(pkg-config --cflags --libs untorn) -o after && ./after FILE ROUNDS */
#include <untorn_posix.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ACCOUNTS = 1000, COINS = 100 };

static size_t size = ACCOUNTS * sizeof(long);

/* Everybody pays in some coins; then these are paid out. False: somebody has too few. */
static int move_coins(long *accounts) {
    long pot = 0;
    for (int i = 0; i < ACCOUNTS; i++) {
        long coins = rand() % 30;
        if (accounts[i] < coins) return 0;
        accounts[i] -= coins;
        pot += coins;
    }
    while (pot-- > 0) accounts[rand() % ACCOUNTS]++;
    return 1;
}

int main(int argc, char **argv) {
    if (argc == 3 && untorn_manage(argv[1]) != 0) return perror("untorn_manage"), 1;
    int fd = argc == 3 ? open(argv[1], O_RDWR | O_CREAT, 0644) : -1;
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0) return perror("open"), 1;
    long *accounts = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), sum = 0;
    if (accounts == MAP_FAILED) return perror("mmap"), 1;
    for (int i = 0; i < ACCOUNTS; i++) sum += accounts[i];
    for (int i = 0; sum == 0 && i < ACCOUNTS; i++) accounts[i] = COINS;
    printf("%ld coins\n", sum);
    if (sum != 0 && sum != ACCOUNTS * COINS) return fprintf(stderr, "torn\n"), 3;

    srand((unsigned)getpid());
    for (long round = atol(argv[2]); round > 0; round--) {
        if (!move_coins(accounts) && untorn_fd_rollback(fd) != 0) return perror("roll back"), 1;
        if (msync(accounts, size, MS_SYNC) != 0) return perror("msync"), 1;
    }
    return munmap(accounts, size) != 0 || close(fd) != 0;
}
