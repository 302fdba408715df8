/* Opens, reads and closes many files whose names are numbers.
 *
 *   soak FOLDER FIRST COUNT STRIDE [SUFFIX]   FIRST, FIRST + STRIDE, ... each a file that is there;
 *                                             prints the sum of their bytes
 *   soak FOLDER FIRST COUNT stat              looks at COUNT files only
 *   soak FOLDER FIRST COUNT missing           names that are not there: ENOENT for each
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned char buffer[1 << 20];

static int fail(uint64_t step, const char *what)
{
    printf("%s of %" PRIu64 ": %s\n", what, step, strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    int folder = open(argv[1], O_RDONLY | O_DIRECTORY);
    if (folder < 0)
        return fail(0, argv[1]);
    uint64_t first = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10), sum = 0;
    int missing = !strcmp(argv[4], "missing"), look = !strcmp(argv[4], "stat");
    uint64_t stride = missing || look ? 1 : strtoull(argv[4], NULL, 10);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t step = first + i * stride;
        char name[64];
        snprintf(name, sizeof name, "%" PRIu64 "%s", step,
                 missing ? ".nothing" : argc > 5 ? argv[5] : "");
        if (missing || look) {
            struct stat stat;
            int found = !fstatat(folder, name, &stat, 0);
            if (found != look || (missing && errno != ENOENT))
                return fail(step, "stat");
            continue;
        }
        int fd = openat(folder, name, O_RDONLY);
        if (fd < 0)
            return fail(step, "open");
        ssize_t got;
        while ((got = read(fd, buffer, sizeof buffer)) > 0)
            for (ssize_t at = 0; at < got; at++)
                sum += buffer[at];
        if (got < 0)
            return fail(step, "read");
        close(fd);
    }
    printf("%" PRIu64 "\n", sum);
    return 0;
}
