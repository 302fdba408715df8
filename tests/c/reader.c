/* Reads a file in the ways that C programs do and compares it with another one.
 *
 *   reader FILE EXPECTED         read, map shared and private, and compare; prints "ok SIZE"
 *   reader FILE EXPECTED table   the whole table of mappings; prints "ok SIZE"
 *   reader FILE EXPECTED hold    maps, closes, prints "ready"; for each line on its input compares
 *                                again and prints "same" or "changed"
 *
 * Prints what is wrong, and exits with 1, otherwise.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t page;

static void fail(const char *what)
{
    printf("%s (%s)\n", what, strerror(errno));
    exit(1);
}

static unsigned char *load(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail(path);
    if (fseek(file, 0, SEEK_END))
        fail("fseek");
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*size + 1);
    if (fread(bytes, 1, *size, file) != *size)
        fail("fread");
    fclose(file);
    return bytes;
}

static size_t up(size_t size)
{
    return (size + page - 1) / page * page;
}

static void *map(int fd, size_t length, int prot, int flags)
{
    void *at = mmap(NULL, length, prot, flags, fd, 0);
    if (at == MAP_FAILED)
        fail("mmap");
    return at;
}

/* The bytes are right, and zeros follow up to the end of the page. */
static void same(const unsigned char *at, const unsigned char *wanted, size_t size, const char *how)
{
    if (memcmp(at, wanted, size))
        fail(how);
    for (size_t i = size; i < up(size); i++)
        if (at[i])
            fail("bytes behind the end of the file are not zero");
}

static void refused(int good, int wanted, const char *what)
{
    if (good || (errno != wanted && errno != EROFS))
        fail(what);
}

static void read_all(int fd, const unsigned char *wanted, size_t size)
{
    unsigned char *bytes = malloc(size + 1);
    size_t have = 0;
    for (;;) {
        ssize_t got = read(fd, bytes + have, size + 1 - have);
        if (got < 0)
            fail("read");
        if (got == 0)
            break;
        have += (size_t)got;
    }
    if (have != size || memcmp(bytes, wanted, size))
        fail("read gives other bytes");
    struct iovec parts[2] = {{bytes, size / 3}, {bytes + size / 3, size - size / 3}};
    memset(bytes, 0, size);
    if (preadv(fd, parts, 2, 0) != (ssize_t)size || memcmp(bytes, wanted, size))
        fail("preadv gives other bytes");
    free(bytes);
}

static void table(const char *path, int fd, const unsigned char *wanted, size_t size)
{
    const int kinds[] = {MAP_SHARED, MAP_PRIVATE};
    const size_t lengths[] = {1, size, size + 1, up(size) + page};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 4; i++) {
            unsigned char *at = map(fd, lengths[i], PROT_READ, kinds[k]);
            if (lengths[i] < size && *at != *wanted)
                fail("a short mapping has other bytes");
            if (lengths[i] >= size)
                same(at, wanted, size, "a mapping has other bytes");
            munmap(at, lengths[i]);
        }
        unsigned char *at = map(fd, size, PROT_READ, kinds[k] | MAP_POPULATE);
        same(at, wanted, size, "MAP_POPULATE gives other bytes");
        const int advices[] = {MADV_WILLNEED, MADV_SEQUENTIAL, MADV_RANDOM, MADV_DONTNEED};
        for (int i = 0; i < 4; i++) {
            if (madvise(at, size, advices[i]))
                fail("madvise");
            same(at, wanted, size, "other bytes after madvise");
        }
        /* Not every kernel has these; bytes must not change whatever they do. */
        madvise(at, size, MADV_HUGEPAGE);
        same(at, wanted, size, "other bytes after MADV_HUGEPAGE");
        if (mlock(at, size) && errno != ENOMEM && errno != EPERM)
            fail("mlock");
        same(at, wanted, size, "other bytes after mlock");
        munlock(at, size);

        pid_t child = fork();
        if (child == 0)
            _exit(memcmp(at, wanted, size) ? 1 : 0);
        int status;
        if (waitpid(child, &status, 0) != child || status)
            fail("a forked child sees other bytes");
        munmap(at, size);
    }

    refused(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED, EACCES,
            "a shared mapping may be written");
    unsigned char *shared = map(fd, size, PROT_READ, MAP_SHARED);
    refused(mprotect(shared, size, PROT_READ | PROT_WRITE) == 0, EACCES,
            "mprotect makes a shared mapping writable");
    refused(open(path, O_RDWR) >= 0, EROFS, "the file opens for writing");

    unsigned char *own = map(fd, size, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    for (size_t i = 0; i < size; i += page)
        own[i] = (unsigned char)~wanted[i];
    own[size - 1] = (unsigned char)~wanted[size - 1];
    for (size_t i = 0; i < size; i += page)
        if (own[i] != (unsigned char)~wanted[i])
            fail("a private mapping loses what was written");
    same(shared, wanted, size, "a private write shows in a shared mapping");
    munmap(own, size);
    munmap(shared, size);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fputs("reader FILE EXPECTED [table|hold]\n", stderr);
        return 2;
    }
    page = (size_t)sysconf(_SC_PAGESIZE);
    size_t size;
    unsigned char *wanted = load(argv[2], &size);

    int fd = open(argv[1], O_RDONLY);
    if (fd < 0)
        fail(argv[1]);
    struct stat stat;
    if (fstat(fd, &stat))
        fail("fstat");
    if ((size_t)stat.st_size != size)
        fail("fstat gives another size");
    if ((uintmax_t)stat.st_blocks != (uintmax_t)(size + 511) / 512)
        fail("fstat gives another number of blocks");
    if (lseek(fd, 0, SEEK_END) != (off_t)size || lseek(fd, 0, SEEK_SET) != 0)
        fail("lseek gives another size");

    const char *what = argc > 3 ? argv[3] : "";
    if (!strcmp(what, "table")) {
        table(argv[1], fd, wanted, size);
    } else {
        unsigned char *shared = map(fd, size, PROT_READ, MAP_SHARED);
        unsigned char *private = map(fd, size, PROT_READ, MAP_PRIVATE);
        read_all(fd, wanted, size);
        close(fd);
        same(shared, wanted, size, "a shared mapping has other bytes");
        same(private, wanted, size, "a private mapping has other bytes");
        if (!strcmp(what, "hold")) {
            char line[64];
            puts("ready");
            fflush(stdout);
            while (fgets(line, sizeof line, stdin)) {
                int good = !memcmp(shared, wanted, size) && !memcmp(private, wanted, size);
                puts(good ? "same" : "changed");
                fflush(stdout);
            }
            return 0;
        }
    }
    printf("ok %zu\n", size);
    return 0;
}
