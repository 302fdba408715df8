/* Reads batches through the descriptor service: an example, and a test.
 *
 *   client MOUNT STREAM STEP COUNT
 *
 * prints, for each of COUNT steps from STEP on, its tensors and the sum of its bytes.
 *
 *   cc -I dmabuf/deliver/include -o client tests/c/client.c
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "batchfs.h"

/* Some bytes of a batch, read where they lie. */
static uint64_t sum(const unsigned char *bytes, uint64_t size) {
    uint64_t total = 0;
    for (uint64_t i = 0; i < size; i++) total += bytes[i];
    return total;
}

static void describe(uint64_t step, const struct batchfs_batch *batch, uint64_t total) {
    printf("%" PRIu64 " %s %" PRIu64 " shared=%d sum=%" PRIu64, step, batch->kind, batch->size,
           batch->shared, total);
    for (int i = 0; i < batch->tensors; i++) {
        const struct batchfs_tensor *one = &batch->tensor[i];
        printf(" %s:%s[", one->name, one->dtype);
        for (int axis = 0; axis < one->axes; axis++)
            printf("%s%" PRIu64 "/%" PRIu64, axis ? "," : "", one->shape[axis],
                   one->strides[axis]);
        printf("]@%" PRIu64, one->offset);
    }
    putchar('\n');
}

/* What nobody who was handed a descriptor can do. */
static int safe(const struct batchfs_batch *batch) {
    char path[64];
    if (mmap(NULL, batch->size, PROT_READ | PROT_WRITE, MAP_SHARED, batch->fd, 0) != MAP_FAILED)
        return 0;
    if (pwrite(batch->fd, "x", 1, 0) >= 0 || ftruncate(batch->fd, 0) >= 0) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", batch->fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    if (again < 0) return 1;
    int wrote = pwrite(again, "x", 1, 0) >= 0 || ftruncate(again, 0) >= 0;
    close(again);
    return !wrote;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s MOUNT STREAM STEP COUNT\n", argv[0]);
        return 2;
    }
    int service = batchfs_connect(argv[1]);
    if (service < 0) {
        perror(argv[1]);
        return 1;
    }
    uint64_t first = strtoull(argv[3], NULL, 10), count = strtoull(argv[4], NULL, 10);
    for (uint64_t i = 0; i < count; i++) {
        struct batchfs_batch batch;
        char why[512];
        if (batchfs_export(service, NULL, argv[2], first + i, NULL, &batch, why, sizeof why)) {
            fprintf(stderr, "%s: %s\n", strerrorname_np(errno), why);
            return 1;
        }
        struct stat status;
        if (fstat(batch.fd, &status) || (uint64_t)status.st_size != batch.size) {
            fprintf(stderr, "the file has another size\n");
            return 1;
        }
        if (fcntl(batch.fd, F_GETFD) != FD_CLOEXEC || !safe(&batch)) {
            fprintf(stderr, "the descriptor is not safe\n");
            return 1;
        }
        unsigned char *at = mmap(NULL, batch.size, PROT_READ, MAP_PRIVATE, batch.fd, 0);
        if (at == MAP_FAILED) {
            perror("mmap");
            return 1;
        }
        describe(first + i, &batch, sum(at, batch.size));
        munmap(at, batch.size);
        if (batchfs_release(service, &batch)) {
            perror("release");
            return 1;
        }
    }
    close(service);
    return 0;
}
